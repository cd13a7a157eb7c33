"""A model of MXNet, whatever way it is given: a symbol, and the arrays of its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from inc_tb.errors import ModelError
from inc_tb.frameworks.mxnet.library import mx
from inc_tb.frameworks.registry import describe

SYMBOL = "-symbol.json"
_EXPECTED = (
    "Expected a …-symbol.json file with its …-0000.params beside it, as export() and save_checkpoint() write them."
)


class Network(NamedTuple):
    name: str
    symbol: Any
    args: Mapping[str, Any]
    aux: Mapping[str, Any]


def open_network(model: Any) -> Network:
    if isinstance(model, Network):
        return model
    if isinstance(model, str | PathLike):
        return _read_files(*find_files(Path(model)))
    if isinstance(model, mx.gluon.HybridBlock):
        return _of_block(model)
    if isinstance(model, mx.module.BaseModule):
        return _of_module(model)
    if isinstance(model, tuple) and len(model) == 3 and isinstance(model[0], mx.sym.Symbol):
        return Network("the given symbol", model[0], dict(model[1] or {}), dict(model[2] or {}))
    if isinstance(model, mx.sym.Symbol | tuple):
        raise ModelError(
            f"cannot read {describe(model)}: it has no weights; expected (symbol, arg_params, aux_params). "
            "Give all three."
        )
    raise ModelError(
        f"cannot read {describe(model)}; expected a gluon HybridBlock, a Module, (symbol, arg_params, aux_params) or a "
        f"{SYMBOL} file. Make the network of HybridBlocks."
    )


def find_files(path: Path) -> tuple[Path, Path | None]:
    """The symbol, and the parameters of the last epoch, where there are some; also by their prefix, or a folder."""
    if path.is_dir():
        found = sorted(path.glob(f"*{SYMBOL}"))
        if len(found) != 1:
            raise ModelError(f"{path}: has {len(found)} {SYMBOL} files; expected one. Give the path of the file.")
        path = found[0]
    if path.suffix == ".params":
        raise ModelError(f"{path}: holds weights without their network. {_EXPECTED} Give the {SYMBOL} file.")
    if not path.name.endswith(SYMBOL):
        path = path.with_name(path.name + SYMBOL)
    prefix = path.name.removesuffix(SYMBOL)
    beside = [p for p in path.parent.glob("*.params") if re.fullmatch(re.escape(prefix) + r"-\d{4}\.params", p.name)]
    return path, max(beside, default=None)


def _read_files(symbol: Path, params: Path | None) -> Network:
    try:
        read = mx.sym.load(fspath(symbol))
    except (mx.MXNetError, OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{symbol}: not a network of MXNet ({first_line(error)}). {_EXPECTED}") from error
    if params is None:
        raise ModelError(f"{symbol}: there are no weights beside it. {_EXPECTED}")
    try:
        arrays = mx.nd.load(fspath(params))
    except (mx.MXNetError, OSError) as error:
        raise ModelError(f"{params}: cannot be read ({first_line(error)}). {_EXPECTED}") from error
    if not arrays:
        raise ModelError(
            f"{params}: holds no weights, as export() writes it before the network has run. Run it once on a batch, "
            "and export it again."
        )
    named = arrays if isinstance(arrays, dict) else {}
    kinds = {
        kind: {n.partition(":")[2]: a for n, a in named.items() if n.startswith(kind)} for kind in ("arg:", "aux:")
    }
    if not any(kinds.values()):
        raise ModelError(f"{params}: its arrays are not called arg:… and aux:…, as by save_parameters(). {_EXPECTED}")
    return Network(str(symbol), read, kinds["arg:"], kinds["aux:"])


def _of_block(block: Any) -> Network:
    name = f"the given {type(block).__name__}"
    if not block._cached_graph:
        if not block._active:
            raise ModelError(
                f"{name}: what it computes is not known yet. Call hybridize(), and run it once on a batch."
            )
        raise ModelError(f"{name}: it has not run yet, so its shapes are not known. Run it once on a batch.")
    symbol = block._cached_graph[1]
    symbol = mx.sym.Group(list(symbol)) if isinstance(symbol, list | tuple) else symbol
    used = {*symbol.list_arguments(), *symbol.list_auxiliary_states()}
    try:
        arrays = {
            n: p.data(p.list_ctx()[0]).as_in_context(mx.cpu()) for n, p in block.collect_params().items() if n in used
        }
    except (mx.MXNetError, RuntimeError) as error:
        raise ModelError(f"{name}: its weights are not initialized. Call initialize(), and run it once.") from error
    return _sorted(name, symbol, arrays)


def _of_module(module: Any) -> Network:
    if not (module.binded and module.params_initialized):
        raise ModelError("the given Module is not ready. Call bind() and init_params() or set_params() first.")
    args, aux = module.get_params()
    return Network("the given Module", module.symbol, args, aux)


def _sorted(name: str, symbol: Any, arrays: Mapping[str, Any]) -> Network:
    return Network(
        name, symbol, *({n: arrays[n] for n in names if n in arrays} for names in
                        (symbol.list_arguments(), symbol.list_auxiliary_states())),
    )  # fmt: skip


def write_files(network: Network, folder: Path) -> None:
    """As `export` does; a folder holds one model."""
    folder.mkdir(parents=True, exist_ok=True)
    network.symbol.save(str(folder / f"model{SYMBOL}"), remove_amp_cast=False)
    arrays = {f"arg:{n}": a for n, a in network.args.items()} | {f"aux:{n}": a for n, a in network.aux.items()}
    mx.nd.save(str(folder / "model-0000.params"), arrays)


def first_line(error: BaseException) -> str:
    """Of what MXNet says, where a trace of its own code comes first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "Error: " in line), lines[0] if lines else type(error).__name__)
    return told.partition("Error: ")[2].strip() or told
