// The page as one file that holds its records and the graph's worker itself: nothing is fetched, from anywhere.

import { answerFrom } from "./api.ts";
import { readEmbedded, unpackedText } from "./embedded.ts";
import { render } from "./index.tsx";
import { openWorkerBy } from "./layoutworker.ts";
import { standAlone } from "./tensorboard.ts";

const held = (id: string) => document.getElementById(id)!.textContent;
const title = document.title;
const [answers, worker] = await Promise.all([readEmbedded(held("records")), unpackedText(held("elk-worker"))]);
answerFrom(answers);
openWorkerBy(() => new Worker(URL.createObjectURL(new Blob([worker], { type: "text/javascript" }))));
standAlone();
render();
document.title = title;
