"""13xx: what can be wrong with an engine.tar or an engine directory."""

from errors.coded_error import CodedError

_GIVE = "give an engine.tar (path or URL), a folder of an engine or model, or a .gguf file"


class EngineNotFound(CodedError):
    code = "E1301"
    summary = "There is no engine at the given path or URL"
    template = "{place} {reason}; {remedy}."

    def __init__(self, *, place: object, reason: str, remedy: str = _GIVE) -> None:
        super().__init__(place=place, reason=reason, remedy=remedy)


class InvalidManifest(CodedError):
    code = "E1302"
    summary = "The engine's manifest is damaged or not a manifest"
    template = "The manifest of {place} is invalid: {reason}; fetch the engine again or rebuild it."


class NewerManifest(CodedError):
    code = "E1303"
    summary = "The engine was packed by a later version of cog-triton"
    template = (
        "The manifest of {place} has format version {format_version}, this program reads up to "
        "{newest_known}; update cog-triton or rebuild the engine with this version."
    )


class TokenizerMissing(CodedError):
    code = "E1304"
    summary = "An engine lacks its fast tokenizer"
    template = (
        "{place} lacks {missing}; an engine carries a fast tokenizer: write it there with "
        "AutoTokenizer.from_pretrained(...).save_pretrained(...)."
    )


class EngineFileMissing(CodedError):
    code = "E1305"
    summary = "A file that the engine needs is missing"
    template = "{place} lacks {name!r}, which belongs to the engine; fetch or unpack the engine again."


class EngineFileDamaged(CodedError):
    code = "E1306"
    summary = "A file of the engine differs from the packed file"
    template = "{name!r} in {place} has {property} {found}, packed was {expected}; fetch the engine again."


class UnexpectedEngineFile(CodedError):
    code = "E1307"
    summary = "An engine contains a file that its manifest does not list"
    template = "{name!r} in {place} is not listed in the manifest; remove it or pack the engine again."


class UnsafeTarMember(CodedError):
    code = "E1308"
    summary = "A tar contains a member that must not be unpacked (path, link, device, duplicate)"
    template = (
        "Member {member!r} of {place} {reason}; nothing was unpacked: pack plain files under plain names."
    )


class DamagedTar(CodedError):
    code = "E1309"
    summary = "A tar is truncated, damaged or not a tar"
    template = "{place} is not a whole tar: {reason}; fetch it again or pack the engine again."


class NoSpaceLeft(CodedError):
    code = "E1310"
    summary = "The disk (or a quota on it) is too small for the engine"
    template = "{place} has no room for the engine: {reason}; free some space or choose another disk."


class EngineNotWritable(CodedError):
    code = "E1311"
    summary = "An engine can't be written to the given path"
    template = "{place} can't be written: {reason}; choose another place or clear this one."


class EngineUnreadable(CodedError):
    code = "E1312"
    summary = "An engine's file exists but can't be read"
    template = "{place} can't be read: {reason}; check its permissions and its disk."


class EngineNotPackable(CodedError):
    code = "E1313"
    summary = "A folder contains something that an engine.tar can't contain"
    template = "{name!r} in {place} can't be packed: it {reason}; replace it by a plain file or remove it."


class PoolingUnsupported(CodedError):
    code = "E1328"
    summary = "An embedding model makes its vectors in a way that is not supported"
    template = (
        "{place} can't be served: {reason}; choose an embedding model with mean, CLS or last-token pooling."
    )


class GenerationConfigInvalid(CodedError):
    code = "E1329"
    summary = "The model's generation_config.json has a sampling parameter that no request may have"
    template = (
        "In {place} {name} has to be {expected}, but is {value}; correct the file, or set "
        "GENERATION_CONFIG=none to serve without its sampling parameters."
    )
