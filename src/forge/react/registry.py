"""Registry of an application's queries and mutations: name, function, typed arguments, options.

Every call is checked before it runs. Input: a name and JSON arguments. Output: a `Call` whose arguments have the types
of the function's signature, or an error that names the wrong argument.
"""

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from forge.errors import BadArguments, RegistrationError, UnknownName
from forge.values import MOST_LEVELS, too_deep

Scope = Literal["public", "tenant", "user"]
Function = Callable[..., Awaitable[Any]]
OWN: Final = "forge."
"""Prefix of the names of Forge's own queries and mutations."""


class Auth(msgspec.Struct, frozen=True):
    """The caller. `role` is the database role for reads; None reads with Forge's own role."""

    user: str | None = None
    tenant: str | None = None
    role: str | None = None
    claims: Mapping[str, Any] = {}


ANYONE = Auth()


class Query(msgspec.Struct, frozen=True):
    """A registered query. `reads` lists tables that its SQL does not show; `refresh_every` is in seconds."""

    name: str
    function: Function
    arguments: type[msgspec.Struct]
    scope: Scope = "user"
    consistent: bool = False
    key: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    refresh_every: float | None = None
    cache: float | bool = False
    """Maximum age of a cached result for one-shot calls: seconds, or True for the cache's own limit."""
    permission: str | None = None
    """Permission that a token needs to run the query; None means no permission."""
    own: bool = False
    """Whether it is one of Forge's own queries, which report data outside tables: it is neither counted nor checked."""


class Mutation(msgspec.Struct, frozen=True):
    """A registered mutation; it runs in one transaction."""

    name: str
    function: Function
    arguments: type[msgspec.Struct]
    permission: str | None = None
    """Permission that a token needs to run the mutation; None means no permission."""


class Call(msgspec.Struct, frozen=True):
    """A query with its arguments and its caller. Calls with the same `group` have the same result."""

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
        """Register a function as a query."""
        name = self._free(name or function.__name__, own)
        if scope not in typing.get_args(Scope):
            raise RegistrationError(f"the scope of {name} cannot be {scope!r}", fix="use public, tenant or user")
        if refresh_every is not None and not refresh_every > 0:
            raise RegistrationError(f"refresh_every of {name} cannot be {refresh_every}", fix="use seconds above 0")
        if cache is not False and cache is not True and not cache > 0:
            raise RegistrationError(f"cache of {name} cannot be {cache}", fix="use seconds above 0, or True")
        _check_permission(name, permission)
        columns = (key,) if isinstance(key, str) else tuple(key)
        arguments = _arguments(name, function)
        self.queries[name] = Query(
            name, function, arguments, scope, consistent, columns, tuple(reads), refresh_every, cache, permission, own
        )

    def mutation(
        self, function: Function, *, name: str | None = None, permission: str | None = None, own: bool = False
    ) -> None:
        """Register a function as a mutation."""
        name = self._free(name or function.__name__, own)
        _check_permission(name, permission)
        self.mutations[name] = Mutation(name, function, _arguments(name, function), permission)

    def call(self, name: str, arguments: Any, auth: Auth) -> Call:
        """Check the arguments and return a call of a query."""
        query = _found(self.queries, name, "query")
        checked, canonical = _checked(query, arguments)
        visible, scope = scoped(auth, query.scope)
        return Call(query, checked, visible, (name, canonical, scope))

    def change(self, name: str, arguments: Any) -> tuple[Mutation, dict[str, Any]]:
        """Check the arguments and return a mutation with them."""
        mutation = _found(self.mutations, name, "mutation")
        return mutation, _checked(mutation, arguments)[0]

    def _free(self, name: str, own: bool) -> str:
        if name.startswith(OWN) is not own:
            raise RegistrationError(f"{name} would be a function of Forge's own", fix=f"leave out {OWN}")
        if name in self.queries or name in self.mutations:
            raise RegistrationError(f"there are two functions called {name}", fix="give one another name=")
        return name


def _check_permission(name: str, permission: str | None) -> None:
    if permission is not None and len(permission.split()) != 1:
        raise RegistrationError(f"the permission of {name} cannot be {permission!r}", fix='use one word: "orders:read"')


def scoped(auth: Auth, scope: Scope) -> tuple[Auth, bytes]:
    """Reduce the caller to what a query may see; encode that for the group key. Hidden parts do not split groups."""
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
    """Return the error for JSON that is nested too deeply."""
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
    """Build a struct type that checks the arguments of a function, without its first argument, the context."""
    if not inspect.iscoroutinefunction(function):
        raise RegistrationError(f"{name} is not an async function", fix=f"async def {name}(ctx, …)")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise RegistrationError(f"{name} takes no context", fix=f"async def {name}(ctx, …)")
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in parameters[1:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RegistrationError(f"{name} takes {parameter}", fix="give every argument a name of its own")
        kind = hints.get(parameter.name, Any)
        default = parameter.default
        fields.append((parameter.name, kind) if default is parameter.empty else (parameter.name, kind, default))
    try:
        struct = msgspec.defstruct(name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.Decoder(struct)
    except (TypeError, ValueError, NameError) as error:
        raise RegistrationError(f"the arguments of {name} cannot be checked: {error}", fix="use plain types") from None
    return struct
