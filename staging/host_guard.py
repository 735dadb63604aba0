"""Classes whose host arrays are plain attributes until a copy uses them.

A guard must cost nothing while nothing is in flight: model runners read ``np`` hundreds of
times a step. The interpreter's fastest attribute is a slot of a class without ``__getattr__``
and without a descriptor of that name. So an object has such a class, the open one, and while
the device uses its host arrays it has the guarded one: a subclass of it without storage of its
own, in which those names are properties that wait. The extension swaps the two by assigning
``__class__``, in one step with the check that nothing is in flight.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# What was made for a class is kept in the class: it goes with it.
_GUARDED = "_staging_guarded_class"
_WITHOUT = "_staging_classes_without"
_OPEN = "_staging_open_class"


def open_class(cls: type) -> type:
    """Return the class itself, or the open class of a guarded one."""
    opened: type = cls.__dict__.get(_OPEN, cls)
    return opened


def guarded_class(cls: type, names: Iterable[str]) -> type:
    """Return the guarded class of an open one.

    Parameters
    ----------
    cls
        The open class. It has a method ``_wait_host()`` that waits and then gives the object
        this class back.
    names
        The attributes to guard.

    Returns
    -------
    type
        A subclass with the same name, made once for each class.
    """
    guarded: type | None = cls.__dict__.get(_GUARDED)
    if guarded is None:
        guarded = _subclass(cls, {**{name: _waiting(name) for name in names}, _OPEN: cls})
        setattr(cls, _GUARDED, guarded)
    return guarded


def class_without(cls: type, name: str, why: str) -> type:
    """Return a subclass in which the attribute ``name`` raises AttributeError that says why."""
    made: dict[tuple[str, str], type] | None = cls.__dict__.get(_WITHOUT)
    if made is None:
        made = {}
        setattr(cls, _WITHOUT, made)
    key = (name, why)
    if key not in made:

        def missing(self: Any) -> Any:
            raise AttributeError(why)

        made[key] = _subclass(cls, {name: property(missing)})
    return made[key]


def _subclass(cls: type, namespace: dict[str, Any]) -> type:
    same = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls)(cls.__name__, (cls,), {**same, "__doc__": cls.__doc__, **namespace})


def _waiting(name: str) -> property:
    def read(self: Any) -> Any:
        self._wait_host()
        # The object has its open class again, unless another thread's copy came in between.
        return getattr(self, name)

    return property(read)
