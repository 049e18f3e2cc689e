"""13xx: what can be wrong with an engine.tar, an engine directory, its source or the GPU it meets."""

from __future__ import annotations

from errors.base import CodedError


class EngineNotFound(CodedError):
    code = "E1301"
    summary = "There is no engine at the given place"
    template = "{place} {reason}; give a directory that holds an engine, an engine.tar, or the URL of one."


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
    summary = "A file of the engine is not the one that was packed"
    template = "{name!r} in {place} has {property} {found}, packed was {expected}; fetch the engine again."


class UnexpectedEngineFile(CodedError):
    code = "E1307"
    summary = "An engine holds a file that its manifest does not list"
    template = "{name!r} in {place} is not listed in the manifest; remove it or pack the engine again."


class UnsafeTarMember(CodedError):
    code = "E1308"
    summary = "A tar holds a member that must not be unpacked (path, link, device, duplicate)"
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
    summary = "An engine can't be written to the given place"
    template = "{place} can't be written: {reason}; choose another place or clear this one."


class EngineUnreadable(CodedError):
    code = "E1312"
    summary = "An engine's file exists but can't be read"
    template = "{place} can't be read: {reason}; check its permissions and its disk."


class EngineNotPackable(CodedError):
    code = "E1313"
    summary = "A directory holds something that can't go into an engine.tar"
    template = "{name!r} in {place} can't be packed: it {reason}; replace it by a plain file or remove it."


class SourceUnsupported(CodedError):
    code = "E1314"
    summary = "An engine's source is neither a path nor an http, https or file URL"
    template = "{source!r} can't be fetched: {reason}; give a path or an http, https or file URL."


class SourceUnreachable(CodedError):
    code = "E1315"
    summary = "The server that holds the engine can't be reached"
    template = "{source} can't be reached: {reason}; check the URL and the network, then try again."


class SourceNotFound(CodedError):
    code = "E1316"
    summary = "The server has no engine at this URL"
    template = "{source} does not exist (HTTP {status}); check the URL."


class SourceForbidden(CodedError):
    code = "E1317"
    summary = "The server refuses to hand out the engine (credentials missing, wrong or expired)"
    template = "{source} is refused (HTTP {status}): {reason}."


class SourceFailed(CodedError):
    code = "E1318"
    summary = "The server that holds the engine answers with a failure"
    template = "{source} answered {reason}; try again later or use another server."


class SourceInterrupted(CodedError):
    code = "E1319"
    summary = "A download broke off and could not be resumed"
    template = "{source} broke off after {received_bytes} of {size_bytes} bytes ({reason}); try again."


class SourceChanged(CodedError):
    code = "E1320"
    summary = "The engine behind a URL changed while it was downloaded"
    template = "{source} changed during the download ({reason}); try again once its upload is finished."


class RedirectRefused(CodedError):
    code = "E1321"
    summary = "A URL redirects too often or to where an engine must not come from"
    template = "{source} redirects {reason}; give the final URL."


class WrongGpuArchitecture(CodedError):
    code = "E1322"
    summary = "The engine was compiled for another GPU architecture"
    template = (
        "The engine was built for SM {built_for}, this GPU is SM {present}: "
        "{remedy}, or rebuild it on this GPU."
    )


class GpuRequired(CodedError):
    code = "E1323"
    summary = "The engine needs an NVIDIA GPU and there is none"
    template = (
        "A {engine_kind} engine needs an NVIDIA GPU and none is visible here; start the container with "
        "--gpus=all on a machine with a GPU, or build the engine as kind transformers."
    )


class WrongLibraryVersion(CodedError):
    code = "E1324"
    summary = "The engine was built by another version of its library than the one here"
    template = (
        "The engine was built with {library} {built_with}, here is {present}, and a compiled engine runs on "
        "no other version: serve it with the image that has {built_with}, or {rebuild}."
    )


class TooFewGpus(CodedError):
    code = "E1325"
    summary = "The engine was built for more GPUs than there are"
    template = (
        "The engine was built for {world_size} GPUs and {present} visible here: start the container with "
        "--gpus=all on a machine that has as many, or rebuild it with tp_size x pp_size = {present_count}."
    )


class GpuMemoryTooSmall(CodedError):
    code = "E1326"
    summary = "A GPU has less free memory than the engine's weights take"
    template = (
        "Rank {rank} of the engine takes {needed} and GPU {device} has {free} free: end what else uses "
        "that GPU, use a larger one, or rebuild the engine quantized or for more GPUs."
    )


class AddressRefused(CodedError):
    code = "E1327"
    summary = "A URL given by a caller leads to an address that is not on the internet"
    template = (
        "{host} is at {address}, an address that callers' URLs must not lead to: use a public URL, "
        "or, if you run this server and trust its callers, set {variable}=true."
    )
