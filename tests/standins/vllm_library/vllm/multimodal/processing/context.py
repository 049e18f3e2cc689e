import dataclasses


@dataclasses.dataclass
class TimingContext:
    enabled: bool = True
