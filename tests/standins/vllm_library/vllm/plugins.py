"""Where vLLM loads its plugins. This one has none."""


def load_general_plugins() -> None:
    pass
