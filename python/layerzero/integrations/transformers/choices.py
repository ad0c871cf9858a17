"""The attention or the experts that the configurations of a model name: choose others, and put back what was there.

`kind` is "attn" or "experts", as in `set_attn_implementation` and `set_experts_implementation`. A model has a
configuration for each model within it, and each may name another implementation.
"""


def configs_of(model):
    """Every configuration that a part of the model reads, and those within, each once."""
    found: dict[int, object] = {}

    def add(config):
        if config is not None and id(config) not in found:
            found[id(config)] = config
            for name in getattr(config, "sub_configs", ()):
                add(getattr(config, name, None))

    for module in model.modules():
        add(getattr(module, "config", None))
    return found.values()


def chosen(model, kind):
    """[(configuration, what it names)] for `put_back`."""
    attribute = f"_{kind}_implementation"
    return [(config, getattr(config, attribute)) for config in configs_of(model) if hasattr(config, attribute)]


def choose(model, kind, name):
    """Chooses for the model and for the models within it: versions differ in how many of these they reach (T5's stacks).

    Raises what Transformers raises.
    """
    method = f"set_{kind}_implementation"
    getattr(model, method)(name)
    for part in model.modules():
        if hasattr(part, method) and part is not model and _takes_another(part, kind, name):
            getattr(part, method)(name)


def _takes_another(part, kind, name):
    can = getattr(part, f"_can_set_{kind}_implementation", None)
    return can is not None and can() and getattr(part.config, f"_{kind}_implementation", name) != name


def put_back(before, kind):
    """Each configuration names again what `chosen` saw."""
    for config, name in before:
        setattr(config, f"_{kind}_implementation", {"": name})  # a plain name would go to the configurations within too
