"""Classes whose host arrays are plain attributes until a copy uses them."""

from __future__ import annotations

import gc
import weakref

import pytest

from staging.host_guard import class_without, guarded_class, open_class


class Thing:
    """With one array."""

    __slots__ = ("__dict__", "__weakref__", "array", "waited")

    def __init__(self) -> None:
        self.array = 1
        self.waited = 0

    def _wait_host(self) -> None:
        self.waited += 1
        self.__class__ = open_class(type(self))


def test_reading_a_guarded_attribute_waits_and_then_gives_it():
    thing = Thing()
    thing.__class__ = guarded_class(Thing, ("array",))
    assert thing.array == 1
    assert thing.waited == 1
    assert type(thing) is Thing
    assert thing.array == 1
    assert thing.waited == 1


def test_other_attributes_are_not_guarded():
    thing = Thing()
    thing.__class__ = guarded_class(Thing, ("array",))
    assert thing.waited == 0
    thing.note = 5
    assert thing.note == 5
    assert thing.waited == 0


def test_a_wait_that_raises_leaves_the_guard():
    class Failing(Thing):
        __slots__ = ()

        def _wait_host(self) -> None:
            raise KeyboardInterrupt

    thing = Failing()
    guarded = guarded_class(Failing, ("array",))
    thing.__class__ = guarded
    with pytest.raises(KeyboardInterrupt):
        _ = thing.array
    assert type(thing) is guarded


def test_a_guarded_class_looks_like_its_open_class():
    guarded = guarded_class(Thing, ("array",))
    assert issubclass(guarded, Thing)
    assert (guarded.__name__, guarded.__qualname__) == ("Thing", "Thing")
    assert guarded.__module__ == Thing.__module__
    assert guarded.__doc__ == Thing.__doc__
    assert open_class(guarded) is Thing
    assert open_class(Thing) is Thing


def test_each_class_has_one_guarded_class():
    class Derived(Thing):
        pass

    assert guarded_class(Thing, ("array",)) is guarded_class(Thing, ("array",))
    derived = guarded_class(Derived, ("array",))
    assert derived is not guarded_class(Thing, ("array",))
    assert open_class(derived) is Derived
    thing = Derived()
    thing.__class__ = derived
    assert thing.array == 1
    assert type(thing) is Derived


def test_an_attribute_that_is_missing_on_purpose_says_why():
    thing = Thing()
    cls = class_without(Thing, "array", "because")
    assert cls is class_without(Thing, "array", "because")
    thing.__class__ = cls
    with pytest.raises(AttributeError, match="because"):
        _ = thing.array
    assert not hasattr(thing, "array")


def test_classes_are_kept_only_as_long_as_their_open_class():
    def make() -> weakref.ref[type]:
        class Local(Thing):
            pass

        guarded_class(Local, ("array",))
        return weakref.ref(Local)

    reference = make()
    gc.collect()
    assert reference() is None
