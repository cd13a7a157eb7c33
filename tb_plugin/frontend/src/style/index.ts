// What the whole page looks like; what only one view has is beside it.

import base from "./base.css";
import cures from "./cures.css";
import grid from "./grid.css";
import plots from "./plots.css";
import shell from "./shell.css";
import status from "./status.css";
import toolbar from "./toolbar.css";

export const STYLE = [base, shell, status, toolbar, grid, plots, cures].join("\n");
