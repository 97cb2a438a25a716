"""Which nodes of a cluster are meant: by a command that has no keys, and by `target_nodes`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from trio_orchestrator.redis.address import Address
from trio_orchestrator.redis.error import RefusedCommandError
from trio_orchestrator.redis.fanout import Fanout, Target
from trio_orchestrator.redis.key import Args, named, text
from trio_orchestrator.redis.router import Aim, Router


def _masters(router: Router) -> list[Aim]:
    return [*router.first_slots().values()]


def _replicas(router: Router) -> list[Aim]:
    topology = router.topology
    return [*sorted(topology.nodes - frozenset(topology.masters), key=str)]


_CHOICES: Final[Mapping[str, Callable[[Router], list[Aim]]]] = {
    "primaries": _masters,
    "masters": _masters,
    "replicas": _replicas,
    "all": lambda router: _masters(router) + _replicas(router),
    "random": lambda router: [router.any_master],
    "default": lambda router: [router.home],
}


def aims_of(router: Router, fanout: Fanout, args: Args) -> Sequence[Aim]:
    """Return where a command without keys goes; a master is meant by a slot, so that its successor is found.

    Raises:
        RefusedCommandError: It goes on from a cursor, which is one of a node that it does not name.
    """
    if fanout.target is Target.MASTERS:
        _check_cursor(args)
        return _masters(router)
    if fanout.target is Target.NODES:
        return _masters(router) + _replicas(router)
    if fanout.target is Target.ANY:
        return [router.any_master]
    slot = fanout.slot_in(args)
    return [router.home if slot is None else slot]


def _check_cursor(args: Args) -> None:
    name, call = named(args)
    if name == "SCAN" and len(call) > 1 and text(call[1]) != "0":
        advice = "use `redis.scan_iter()`, or name the node by `target_nodes=`"
        raise RefusedCommandError(f"SCAN is refused: its cursor is one of a single node; {advice}")


def chosen_aims(router: Router, chosen: Any) -> Sequence[Aim]:
    """Return what `target_nodes` means: a word, an address or a list of them.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(chosen, (list, tuple, set, frozenset)):
        return [aim for one in cast("Iterable[Any]", chosen) for aim in chosen_aims(router, one)]
    choice = _CHOICES.get(chosen.lower()) if isinstance(chosen, str) else None
    return choice(router) if choice is not None else [find_address(router, chosen, "target_nodes")]


def find_address(router: Router, wanted: object, name: str) -> Address:
    """Return the node of that address, "host:port" or an `Address`.

    Raises:
        ValueError: It is no node of the cluster.
    """
    for address in router.topology.nodes:
        if wanted in (address, str(address)):
            return address
    raise ValueError(f"{name} must be a node of the cluster, got {wanted!r}")
