"""``engine``: one function per subcommand, each importing what it needs and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine import __version__
from engine.errors import UserError
from platforms.contract import DeviceError
from platforms.discovery import PlatformError

if TYPE_CHECKING:
    from engine.config import Collected
    from platforms.discovery import Selection

FAILED, INTERRUPTED, PIPE_CLOSED = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``engine ARGV`` and return the exit code: 2 for what the user or the machine got wrong, with one message and
    no traceback; 130 after an interrupt."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except (UserError, PlatformError, DeviceError) as error:
        print(f"engine: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def serve(words: Sequence[str]) -> int:
    """Serve a model over HTTP."""
    from engine.interrupt import exit_at_once

    with exit_at_once():
        from engine.config import collect

        found = collect(words, os.environ, "serve")
        _warn((*found.warnings, *_unread()))
        from engine.server.launch import serve as launch

        return launch(found.given)


def explain(words: Sequence[str]) -> int:
    """Print every decision about a model on a device, without loading either."""
    from engine.config import collect, value_of
    from engine.plan import plan_for
    from engine.weights.checkpoint import open_checkpoint
    from engine.weights.resolve import resolve_model

    found = collect(words, os.environ, "explain", ("--json",))
    _warn((*found.warnings, *_unread()))
    selection = _select(found)
    model = resolve_model(value_of(found.given, "model.name"))
    config = open_checkpoint(model.path, model.name).config
    plan = plan_for(selection.plugin, selection.profile, config, found.given, environment=os.environ)
    if "--json" in found.switches:
        return _print_json(plan.to_json())
    from engine.explain import Row, render
    from engine.table import terminal
    from platforms.discovery import summarise

    about = [Row("model", model.name, model.origin)]
    why = selection.reason.removesuffix(f"; {summarise(selection.profile)}")
    _say(render(plan, *terminal(sys.stdout), why=why, about=about))
    return 0


def platforms(words: Sequence[str]) -> int:
    """Print every installed platform, what it found here, and which would be chosen."""
    unknown = [word for word in words if word != "--json"]
    if unknown:
        raise UserError(f"engine platforms: unknown word {unknown[0]}; it takes --json")
    from platforms.discovery import candidates, choose

    rows = candidates()
    try:
        chosen, problem = choose(rows), ""
    except PlatformError as error:
        chosen, problem = None, str(error)
    if "--json" in words:
        body = chosen.to_json() if chosen else {"profile": None, "rows": [row.to_json() for row in rows]}
        return _print_json({**body, "problem": problem})
    from engine.platform_table import render_platforms
    from engine.table import terminal

    _say(render_platforms(rows, chosen, problem, *terminal(sys.stdout)) + "\n")
    return 0


def pull(words: Sequence[str]) -> int:
    """Bring a model into the cache."""
    if len(words) != 1 or words[0].startswith("-"):
        raise UserError(f"engine pull takes one name, found {' '.join(words) or 'none'}: engine pull NAME")
    from engine.weights.pull import pull as bring

    _say(f"{bring(words[0])}\n")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "serve": serve,
    "explain": explain,
    "platforms": platforms,
    "pull": pull,
}
CONFIGURED = {"serve": (), "explain": (("--json", "the plan for machines"),)}
USAGE = {"serve": "[MODEL] [flags]", "explain": "[MODEL] [flags]", "platforms": "[--json]", "pull": "NAME"}


def _dispatch(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help", "help"):
        _say(_overview() + "\n")
        return 0
    if name == "--version":
        print(f"engine {__version__}")
        return 0
    if name not in COMMANDS:
        from difflib import get_close_matches

        near = get_close_matches(name, COMMANDS, n=1)
        raise UserError(f"unknown subcommand {name}; " + (f"did you mean {near[0]}?" if near else _names()))
    topics = [word.partition("=")[2] for word in words[1:] if word == "-h" or word.partition("=")[0] == "--help"]
    if topics:
        _say(_help(name, topics[-1]))
        return 0
    return COMMANDS[name](words[1:])


def _overview() -> str:
    rows = [f"  {f'engine {name} {USAGE[name]}':<32}{command.__doc__}" for name, command in COMMANDS.items()]
    return "\n".join(["usage:", *rows, "", "engine SUBCOMMAND --help says more; engine --version"])


def _help(name: str, topic: str) -> str:
    head = f"usage: engine {name} {USAGE[name]}\n\n{COMMANDS[name].__doc__}\n"
    if name not in CONFIGURED:
        return head
    from engine.config.help import render_help
    from engine.table import terminal

    return f"{head}\n" + render_help(name, topic, *terminal(sys.stdout), CONFIGURED[name])


def _names() -> str:
    return "there are " + ", ".join(COMMANDS)


def _select(found: Collected) -> Selection:
    from engine.config import value_of
    from platforms.discovery import read_profile, select

    file = value_of(found.given, "profile_file")
    return select(value_of(found.given, "platform"), profile=read_profile(file) if file else None)


def _unread() -> list[str]:
    """A line per variable that looks like ours and that neither the engine nor an installed platform reads."""
    from engine.config.environment import unknown_variables

    if not unknown_variables(os.environ):
        return []
    from platforms.discovery import installed, loaded

    known: set[str] = set()
    broken = []
    for row in map(loaded, installed()):
        # Strangers' code may raise anything, and what it raised is what there is to say.
        try:
            known |= set(row.plugin.aliases() if row.plugin is not None else ())
        except Exception as error:
            broken.append(f"platform {row.name}: aliases() raised {type(error).__name__}: {error}")
    return [*broken, *unknown_variables(os.environ, known)]


def _say(text: str) -> None:
    from engine.table import encodable

    print(encodable(text, sys.stdout), end="")


def _warn(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"engine: warning: {line}", file=sys.stderr)


def _print_json(body: dict[str, Any]) -> int:
    import json

    print(json.dumps(body, indent=2))
    return 0
