"""Queries and mutations as an application marks them: a name, a function, typed arguments, options.

A call is checked before it runs: in come a name and JSON arguments, out comes a `Call` whose arguments are of the types
that the function states, or an error that says which argument is wrong.
"""

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from forge.errors import ForgeError
from forge.values import MOST_LEVELS, too_deep

Scope = Literal["public", "tenant", "user"]
Function = Callable[..., Awaitable[Any]]
OWN: Final = "forge."
"""What the names of Forge's own queries and mutations begin with."""


class UnknownName(ForgeError):
    """There is no query or mutation of that name."""


class BadArguments(ForgeError):
    """The arguments are not those that the function takes."""


class Registration(ForgeError):
    """A function cannot be registered as it is."""


class Auth(msgspec.Struct, frozen=True):
    """Who asks. `role` is the database role to read as; None reads as Forge itself does."""

    user: str | None = None
    tenant: str | None = None
    role: str | None = None
    claims: Mapping[str, Any] = {}


ANYONE = Auth()


class Query(msgspec.Struct, frozen=True):
    """A marked query. `reads` are tables that cannot be seen in its SQL; `refresh_every` is in seconds."""

    name: str
    function: Function
    arguments: type[msgspec.Struct]
    scope: Scope = "user"
    consistent: bool = False
    key: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    refresh_every: float | None = None
    cache: float | bool = False
    """How long a result may be shown again to who asks once: seconds, or True for as long as the cache says."""
    permission: str | None = None
    """What a token must permit to ask it; None for nothing."""
    own: bool = False
    """Whether it is one of Forge's own, which tells of what is not in tables: it is neither counted nor checked."""


class Mutation(msgspec.Struct, frozen=True):
    """A marked mutation: it runs in one transaction."""

    name: str
    function: Function
    arguments: type[msgspec.Struct]
    permission: str | None = None
    """What a token must permit to run it; None for nothing."""


class Call(msgspec.Struct, frozen=True):
    """A query with its arguments, asked by somebody. Calls with the same `group` have the same result."""

    query: Query
    arguments: Mapping[str, Any]
    auth: Auth
    group: tuple[str, bytes, bytes]


class Registry:
    """The queries and mutations of an application, by name."""

    def __init__(self) -> None:
        self.queries: dict[str, Query] = {}
        self.mutations: dict[str, Mutation] = {}

    def query(
        self,
        function: Function,
        *,
        name: str | None = None,
        scope: Scope = "user",
        consistent: bool = False,
        key: str | Sequence[str] = (),
        reads: Sequence[str] = (),
        refresh_every: float | None = None,
        cache: float | bool = False,
        permission: str | None = None,
        own: bool = False,
    ) -> None:
        """Mark a function as a query."""
        name = self._free(name or function.__name__, own)
        if scope not in typing.get_args(Scope):
            raise Registration(f"the scope of {name} cannot be {scope!r}", fix="use public, tenant or user")
        if refresh_every is not None and not refresh_every > 0:
            raise Registration(f"refresh_every of {name} cannot be {refresh_every}", fix="use seconds above 0")
        if cache is not False and cache is not True and not cache > 0:
            raise Registration(f"cache of {name} cannot be {cache}", fix="use seconds above 0, or True")
        _check_permission(name, permission)
        columns = (key,) if isinstance(key, str) else tuple(key)
        arguments = _arguments(name, function)
        self.queries[name] = Query(
            name, function, arguments, scope, consistent, columns, tuple(reads), refresh_every, cache, permission, own
        )

    def mutation(
        self, function: Function, *, name: str | None = None, permission: str | None = None, own: bool = False
    ) -> None:
        """Mark a function as a mutation."""
        name = self._free(name or function.__name__, own)
        _check_permission(name, permission)
        self.mutations[name] = Mutation(name, function, _arguments(name, function), permission)

    def call(self, name: str, arguments: Any, auth: Auth) -> Call:
        """A call of a query, checked."""
        query = _found(self.queries, name, "query")
        checked, canonical = _checked(query, arguments)
        visible, scope = scoped(auth, query.scope)
        return Call(query, checked, visible, (name, canonical, scope))

    def change(self, name: str, arguments: Any) -> tuple[Mutation, dict[str, Any]]:
        """A call of a mutation, checked."""
        mutation = _found(self.mutations, name, "mutation")
        return mutation, _checked(mutation, arguments)[0]

    def _free(self, name: str, own: bool) -> str:
        if name.startswith(OWN) is not own:
            raise Registration(f"{name} would be a function of Forge's own", fix=f"leave out {OWN}")
        if name in self.queries or name in self.mutations:
            raise Registration(f"there are two functions called {name}", fix="give one another name=")
        return name


def _check_permission(name: str, permission: str | None) -> None:
    if permission is not None and len(permission.split()) != 1:
        raise Registration(f"the permission of {name} cannot be {permission!r}", fix='use one word: "orders:read"')


def scoped(auth: Auth, scope: Scope) -> tuple[Auth, bytes]:
    """What of a caller a query may see, and that as a part of its group: what it cannot see may differ in a group."""
    if scope == "public":
        seen = ANYONE
    elif scope == "tenant":
        seen = Auth(tenant=auth.tenant, role=auth.role, claims=_only(auth.claims, ("tenant", "role")))
    else:
        stable = {name: value for name, value in auth.claims.items() if name not in ("iat", "exp", "nbf", "jti")}
        seen = Auth(auth.user, auth.tenant, auth.role, stable)
    return seen, msgspec.json.encode(seen, order="sorted")


def _only(claims: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: claims[name] for name in names if name in claims}


def _found(known: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in known:
        raise UnknownName(f"there is no {kind} {name[:80]!r}", fix=f"the {kind} names are in /forge/openapi.json")
    return known[name]


def nested_too_deep(what: str) -> BadArguments:
    """The error for JSON of more levels than a value may have."""
    return BadArguments(
        f"{what} is nested deeper than {MOST_LEVELS} levels", fix="nest less, or send the inner part as its JSON text"
    )


def _checked(function: Query | Mutation, arguments: Any) -> tuple[dict[str, Any], bytes]:
    if isinstance(arguments, dict) and too_deep(arguments):
        raise nested_too_deep(f"{function.name}: an argument")
    try:
        checked = msgspec.convert(arguments if arguments is not None else {}, function.arguments)
    except msgspec.ValidationError as error:
        raise BadArguments(f"{function.name}: {error}", fix="see its arguments in /forge/openapi.json") from None
    except RecursionError:
        raise nested_too_deep(f"{function.name}: an argument") from None
    named = {name: getattr(checked, name) for name in checked.__struct_fields__}
    try:
        return named, msgspec.json.encode(checked)
    except (RecursionError, UnicodeError):
        raise BadArguments(f"{function.name}: the arguments have no form in JSON", fix="send plain data") from None


def _arguments(name: str, function: Function) -> type[msgspec.Struct]:
    """The arguments of a function after its first, the context, as a struct that checks them."""
    if not inspect.iscoroutinefunction(function):
        raise Registration(f"{name} is not an async function", fix=f"async def {name}(ctx, …)")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise Registration(f"{name} takes no context", fix=f"async def {name}(ctx, …)")
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in parameters[1:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Registration(f"{name} takes {parameter}", fix="give every argument a name of its own")
        kind = hints.get(parameter.name, Any)
        default = parameter.default
        fields.append((parameter.name, kind) if default is parameter.empty else (parameter.name, kind, default))
    try:
        struct = msgspec.defstruct(name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.Decoder(struct)
    except (TypeError, ValueError, NameError) as error:
        raise Registration(f"the arguments of {name} cannot be checked: {error}", fix="use plain types") from None
    return struct
