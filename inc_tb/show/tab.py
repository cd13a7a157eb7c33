"""What `d.show()` gives: the Quantization tab in the cell of a notebook, from a TensorBoard of this machine."""

from __future__ import annotations

import json
import os
import shutil
import sys
from html import escape
from pathlib import Path
from typing import Any

from tensorboard import manager

from inc_tb.errors import UsageError
from inc_tb.show.cards.pieces import address

_HEIGHT = 800
_FRAME = """<iframe id="{frame}" width="100%" height="{height}" frameborder="0"></iframe>
<script>
(() => {{
  const url = new URL({url}, window.location);
  if ({port}) url.port = {port};
  document.getElementById("{frame}").src = url;
}})();
</script>"""


class Tab:
    """A TensorBoard that runs, at one place of the tab."""

    def __init__(self, logdir: Path, link: str, info: Any, height: int) -> None:
        self.logdir = logdir
        self.port: int = info.port
        self.pid: int = info.pid
        self._link, self._height = link, height

    def __repr__(self) -> str:
        return f"<Tab of {self.logdir}: http://localhost:{self.port}/{self._link} (process {self.pid})>"

    def _repr_html_(self) -> str:
        """On the host that shows the notebook, or behind the proxy of which TensorBoard's notebook support is told."""
        proxy = os.environ.get("TENSORBOARD_PROXY_URL")
        url = "/" if proxy is None else proxy.replace("%PORT%", str(self.port))
        port = self.port if proxy is None else 0
        frame = f"inc-tb-{self.pid}-{id(self):x}"
        told = json.dumps(url + self._link).replace("<", "\\u003c")
        return _FRAME.format(frame=escape(frame), height=self._height, url=told, port=port)


def show_tab(run: Path | None, view: str = "", height: int = _HEIGHT) -> Tab:
    """Starts a TensorBoard for the folder around the run, unless one runs already, as %tensorboard does."""
    if run is None:
        raise UsageError(
            "show() was called on a result that was not logged. Log it first: "
            'with inc_tb.SummaryWriter("nc_workspace/trial-001") as w: w.add_diagnosis(d).'
        )
    logdir, beside = run.resolve().parent, Path(sys.executable).with_name("tensorboard")
    if shutil.which("tensorboard") is None and beside.is_file():  # the venv of the kernel is not on the PATH
        os.environ.setdefault("TENSORBOARD_BINARY", str(beside))
    started = manager.start(["--logdir", str(logdir)])
    if not isinstance(started, manager.StartLaunched | manager.StartReused):
        raise UsageError(f"TensorBoard did not start for {logdir}: {_said(started)}. Start it: tensorboard --logdir …")
    return Tab(logdir, address(view, run.name), started.info, height)


def _said(started: Any) -> str:
    if isinstance(started, manager.StartExecFailed):
        return str(started.os_error)
    if isinstance(started, manager.StartTimedOut):
        return "it takes too long"
    return " ".join((started.stderr or started.stdout or "no reason was given").split())[-400:]
