"""Broken and forged bundles: each is loaded with equal scores or refused with a sentence; nothing else ever happens."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.bundle import Bundle, load_bundle, save_bundle
from fledge.bundle.archive import pack
from fledge.bundle.manifest import MANIFEST, describe_file, read_manifest
from fledge.bundle.weights import tensor_files, write_tensors
from fledge.errors import FledgeError
from fledge.tokenizer import Tokenizer
from tests.bundle.conftest import forge, scores, small_config, small_model


def seal_files(folder: Path) -> None:
    """Make sizes and checksums in the manifest fit the files as they are now."""

    def change(values: dict[str, Any]) -> None:
        for name in values["files"]:
            if (folder / name).is_file():
                values["files"][name] = describe_file(folder / name).model_dump()

    forge(folder, change)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.json",
        "/etc/passwd",
        "a/../../b",
        "a//b",
        "./a",
        "C:\\x",
        "a\\..\\b",
        "",
        "~/x",
        "a\0b",
        "x" * 300,
        pytest.param("🐣" * 60, id="more-bytes-than-characters"),
        "bundle.json",
    ],
)
def test_names_cannot_leave_the_folder(bundle: Bundle, name: str) -> None:
    entry = {"size": 1, "sha256": "0" * 64}
    forge(bundle.path, lambda values: values["files"].update({name: entry}))
    with pytest.raises(FledgeError, match="not a plain name below the bundle"):
        load_bundle(bundle.path)


def test_links_cannot_leave_the_folder(bundle: Bundle, tmp_path: Path) -> None:
    outside = tmp_path / "outside.safetensors"
    shutil.move(bundle.path / "model.safetensors", outside)
    os.symlink(outside, bundle.path / "model.safetensors")
    with pytest.raises(FledgeError, match="link that leaves the bundle"):
        load_bundle(bundle.path)


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (("config", "model", "layers"), 10**9, "layers"),
        (("config", "model", "width"), 2**40, "shape|tables"),
        (("config", "model", "width"), 64, "shape"),
        (("config", "model", "heads"), 7, "does not divide"),
        (("config", "model", "hidden"), 10**12, "shape|can't be built"),
        (("config", "model", "architecture"), "oracle", "no model.architecture"),
        (("config", "model", "tied"), True, "which the model of these settings does not have"),
        (("config", "optimizer", "learning_rate"), "fast", "learning_rate"),
        (("config", "surprise"), 1, "no setting"),
        (("model", "context_length"), 2**31, "tables of"),
        (("model", "vocabulary_size"), 2**31, "shape"),
        (("model", "vocabulary_size"), -1, "usable manifest"),
        (("model", "vocabulary_size"), 10, "shape|do not belong together"),
        (("tokenizer", "fingerprint"), "0" * 64, "not the one this model was trained with"),
        (("tokenizer", "kind"), "word", "says tokenizer.kind = 'word', and its files hold 'bpe'"),
        (("tokenizer", "vocabulary_size"), 5, "says tokenizer.vocabulary_size = 5"),
        (("model", "parameters"), 5, r"says model.parameters = 5, and its files hold \d+"),
        (("model", "dtype"), "float99", "says model.dtype = 'float99', and its files hold 'float32'"),
        (("config", "sampling", "max_tokens"), 10**15, "sampling.max_tokens = 1000000000000000 is not allowed"),
        (("files", "model.safetensors", "size"), 10**15, "bytes where the bundle says"),
        (("files", "model.safetensors", "size"), -5, "usable manifest"),
        pytest.param(("files", "model.safetensors", "size"), 10**400, "usable manifest", id="size-beyond-floats"),
        pytest.param(("model", "parameters"), 10**400, "usable manifest", id="parameters-beyond-floats"),
        pytest.param(("config", "model", "width"), 4 * 10**400, "over a million TB", id="width-beyond-floats"),
        (("files", "model.safetensors", "sha256"), "nothing", "usable manifest"),
        (("files",), [], "usable manifest"),
        (("version",), 99, "needs fledge 7.0 or later"),
        (("version",), "1", "no format version"),
        (("version",), 0, "no format version"),
        (("format",), "other", "not a fledge bundle"),
    ],
)
def test_forged_manifests_are_refused_without_allocating(
    bundle: Bundle, path: tuple[str, ...], value: object, match: str
) -> None:
    def change(values: dict[str, Any]) -> None:
        values["readable_by"] = "7.0"
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = value

    forge(bundle.path, change)
    tracemalloc.start()
    with pytest.raises(FledgeError, match=match):
        load_bundle(bundle.path)
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def test_more_neurons_than_there_are_weights_for_are_not_laid_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config(architecture="bdh", multiplier=4)
    folder = save_bundle(tmp_path / "bdh", config, tokenizer, small_model(config, tokenizer))
    forge(folder, lambda values: values["config"]["model"].update(multiplier=1 << 22))
    with pytest.raises(FledgeError, match=r"describes a model with tables of 2\.1 GB"):
        load_bundle(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_without_a_checksum_is_refused(bundle: Bundle, name: str) -> None:
    forge(bundle.path, lambda values: values["files"].pop(name))
    with pytest.raises(FledgeError, match=f"does not list {name}"):
        load_bundle(bundle.path)


def test_an_unsealed_change_is_noticed(bundle: Bundle) -> None:
    text = (bundle.path / MANIFEST).read_text()
    (bundle.path / MANIFEST).write_text(text.replace('"rope_theta": 10000.0', '"rope_theta": 10001.0'))
    with pytest.raises(FledgeError, match="does not match its own checksum"):
        load_bundle(bundle.path)
    (bundle.path / MANIFEST).write_text(json.dumps(json.loads(text)))  # other spacing says the same
    load_bundle(bundle.path)


def test_the_card_may_be_edited(bundle: Bundle) -> None:
    (bundle.path / "README.md").write_text("My own words.")
    load_bundle(bundle.path)


def test_what_is_not_a_bundle_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(FledgeError, match="nothing at that path"):
        load_bundle(tmp_path / "nowhere")
    with pytest.raises(FledgeError, match=r"no bundle\.json"):
        load_bundle(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(FledgeError, match="fledge bundle import"):
        load_bundle(tmp_path)
    for text in ("", "[", "[]", "null", "{}", '{"format": "fledge-bundle"}', "[" * 100_000):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(FledgeError):
            load_bundle(tmp_path)


def mutate(folder: Path, chance: random.Random) -> None:
    """One random act of damage or forgery."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "README.md")
    path = chance.choice(files)
    data = bytearray(path.read_bytes())
    act = chance.randrange(7)
    if act == 0 and data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif act == 1:
        del data[chance.randrange(len(data) + 1) :]
    elif act == 2:
        data += chance.randbytes(chance.randrange(1, 20))
    elif act == 3 and data:
        start = chance.randrange(len(data))
        data[start : start + chance.randrange(1, 64)] = chance.randbytes(chance.randrange(64))
    elif act == 4:
        path.unlink()
        return
    elif act == 5:
        other = chance.choice(files)
        data = bytearray(other.read_bytes())
    path.write_bytes(data)


def outcome(path: Path, expected: torch.Tensor, forged: bool) -> bool:
    """Whether it loaded. Unforged, it must then be the same model; any error but ours fails the test."""
    try:
        loaded = load_bundle(path)
        _ = loaded.training
    except FledgeError:
        return False
    if not forged:
        assert torch.equal(scores(loaded.model), expected)
        assert loaded.tokenizer.decode(loaded.tokenizer.encode("In the void")) == "In the void"
    return True


def fuzz(bundle: Bundle, tmp_path: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    expected = scores(bundle.model)
    refused = 0
    for _ in range(rounds):
        shutil.rmtree(tmp_path / "victim", ignore_errors=True)
        shutil.copytree(bundle.path, tmp_path / "victim")
        for _ in range(chance.randrange(1, 3)):
            mutate(tmp_path / "victim", chance)
        forged = chance.random() < 0.4 and (tmp_path / "victim" / MANIFEST).is_file()
        if forged:
            try:
                seal_files(tmp_path / "victim")
            except (ValueError, KeyError, TypeError, AttributeError, FledgeError):
                continue  # the manifest itself is broken past sealing
        refused += not outcome(tmp_path / "victim", expected, forged)
    assert refused > rounds // 3


def test_hundreds_of_damaged_bundles(bundle: Bundle, tmp_path: Path) -> None:
    fuzz(bundle, tmp_path, rounds=200, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_thousands_of_damaged_bundles(bundle: Bundle, tmp_path: Path, seed: int) -> None:
    fuzz(bundle, tmp_path, rounds=500, seed=seed)


@pytest.mark.parametrize("suffix", [".zip", ".tar.zst"])
def test_damaged_archives(bundle: Bundle, tmp_path: Path, suffix: str) -> None:
    packed = pack(bundle.path, tmp_path / f"whole{suffix}")
    data = packed.read_bytes()
    expected, chance = scores(bundle.model), random.Random(3)
    victim = tmp_path / f"victim{suffix}"
    for _ in range(60):
        broken = bytearray(data)
        if chance.random() < 0.5:
            broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
        else:
            del broken[chance.randrange(len(broken)) :]
        victim.write_bytes(broken)
        outcome(victim, expected, forged=False)


def zip_of(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_archives_bring_out_only_what_the_manifest_lists(bundle: Bundle, tmp_path: Path) -> None:
    manifest = (bundle.path / MANIFEST).read_bytes()
    for name in ("../evil", "/tmp/evil", "extra.txt", "training/../../evil"):
        packed = zip_of(tmp_path / "evil.zip", {MANIFEST: manifest, name: b"x"})
        with pytest.raises(FledgeError, match="does not list"):
            load_bundle(packed)
    with pytest.raises(FledgeError, match="does not begin with"):
        load_bundle(zip_of(tmp_path / "evil.zip", {"a": b"", MANIFEST: manifest}))
    longer = b"x" * (bundle.manifest.files["tokenizer.json"].size + 1)
    with pytest.raises(FledgeError, match="longer than"):
        load_bundle(zip_of(tmp_path / "evil.zip", {MANIFEST: manifest, "tokenizer.json": longer}))
    with pytest.raises(FledgeError, match="does not begin with"):
        load_bundle(zip_of(tmp_path / "evil.zip", {}))


def test_sentences_about_an_archive_name_it_and_not_where_it_was_unpacked(bundle: Bundle, tmp_path: Path) -> None:
    members = {MANIFEST: (bundle.path / MANIFEST).read_bytes()}
    members |= {name: (bundle.path / name).read_bytes() for name in bundle.manifest.files}
    packed = tmp_path / "p.zip"

    def refused(changed: dict[str, bytes]) -> str:
        with pytest.raises(FledgeError) as error:
            _ = load_bundle(zip_of(packed, changed)).training
        return str(error.value)

    for name in ("model.safetensors", "training/state.json"):
        without = {member: data for member, data in members.items() if member != name}
        assert refused(without).startswith(f"{packed / name} is missing")
    assert refused({**members, MANIFEST: b"{}"}).startswith(f"{packed / MANIFEST} is not a fledge bundle's manifest")
    with zipfile.ZipFile(zip_of(packed, members), "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("tokenizer.json", b"{}")
    with pytest.raises(FledgeError, match="holds 'tokenizer.json', a second time"):
        load_bundle(packed)


@pytest.mark.parametrize("suffix", [".zip", ".tar.zst"])
def test_a_packed_bundle_is_packed_again(bundle: Bundle, tmp_path: Path, suffix: str) -> None:
    packed = pack(bundle.path, tmp_path / "p.zip")
    assert pack(packed, tmp_path / f"q{suffix}").read_bytes() == pack(bundle.path, tmp_path / f"r{suffix}").read_bytes()
    assert load_bundle(pack(packed, tmp_path / f"s{suffix}", training=False)).training is None


LOADING = """
import sys, time
from fledge.bundle import load_bundle
bundle = load_bundle(sys.argv[1])
print("loaded", flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_unpacked_is_removed_by_the_next(bundle: Bundle, tmp_path: Path) -> None:
    """And what a living one has unpacked is left alone."""
    packed, scratch = pack(bundle.path, tmp_path / "p.zip"), tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", LOADING, packed], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
        return process

    first = start()
    (left,) = scratch.iterdir()
    first.terminate()
    first.communicate()
    assert left.exists()
    second = start()
    (kept,) = scratch.iterdir()
    third = start()
    assert kept != left
    assert kept in scratch.iterdir()
    for process in (second, third):
        process.terminate()
        process.communicate()


def test_an_archive_cannot_claim_to_be_huge(bundle: Bundle, tmp_path: Path) -> None:
    forge(bundle.path, lambda values: values["files"]["model.safetensors"].update(size=10**12))
    packed = zip_of(tmp_path / "bomb.zip", {MANIFEST: (bundle.path / MANIFEST).read_bytes()})
    with pytest.raises(FledgeError, match="claims to unpack"):
        load_bundle(packed)


def test_links_in_archives_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        manifest = tarfile.TarInfo(MANIFEST)
        data = (bundle.path / MANIFEST).read_bytes()
        manifest.size = len(data)
        archive.addfile(manifest, io.BytesIO(data))
        link = tarfile.TarInfo("tokenizer.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (tmp_path / "link.tar.zst").write_bytes(zstandard.compress(raw.getvalue()))
    with pytest.raises(FledgeError, match="not a plain file"):
        load_bundle(tmp_path / "link.tar.zst")


@pytest.mark.parametrize("suffix", [".zip", ".tar.zst", ".ZIP", ".Tar.Zst"])
def test_a_packed_bundle_loads_as_it_is(bundle: Bundle, tmp_path: Path, suffix: str) -> None:
    packed = pack(bundle.path, tmp_path / f"a{suffix}")
    assert packed.read_bytes() == pack(bundle.path, tmp_path / f"b{suffix}").read_bytes()
    loaded = load_bundle(packed)
    assert torch.equal(scores(loaded.model), scores(bundle.model))
    assert loaded.training is not None
    light = load_bundle(pack(bundle.path, tmp_path / f"c{suffix}", training=False))
    assert light.training is None
    assert torch.equal(scores(light.model), scores(bundle.model))
    with pytest.raises(FledgeError, match="exists already"):
        pack(bundle.path, packed)
    with pytest.raises(FledgeError, match="must end in"):
        pack(bundle.path, tmp_path / "a.rar")


def test_the_manifest_names_every_file_but_the_card(bundle: Bundle) -> None:
    files = {p.relative_to(bundle.path).as_posix() for p in bundle.path.rglob("*") if p.is_file()}
    assert set(read_manifest(bundle.path).files) | {MANIFEST, "README.md"} == files


def test_what_the_manifest_does_not_list_is_not_opened(bundle: Bundle) -> None:
    shutil.copy(bundle.path / "model.safetensors", bundle.path / "training/other.safetensors")
    forge(bundle.path, lambda values: values["files"].pop("training/state.safetensors"))
    with pytest.raises(FledgeError, match=r"state\.safetensors is not in the bundle's manifest"):
        _ = load_bundle(bundle.path).training
    (bundle.path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(FledgeError, match=r"index\.json is not in the bundle's manifest"):
        load_bundle(bundle.path)


@pytest.mark.parametrize(("kind", "words"), [("I32", "weights are floating-point"), ("F8_E4M3", "F8_E4M3")])
def test_weights_of_other_types_are_refused_by_name(bundle: Bundle, kind: str, words: str) -> None:
    path = bundle.path / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    header[names[-1]]["dtype"] = kind
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    seal_files(bundle.path)
    with pytest.raises(FledgeError, match=words):
        load_bundle(bundle.path)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_weights_of_more_than_one_type_are_refused(bundle: Bundle, kind: torch.dtype) -> None:
    """Native code would read the narrow ones past their end."""
    weights = {name: tensor.clone() for name, tensor in bundle.model.state_dict().items()}
    weights["lm_head.weight"] = weights["lm_head.weight"].to(kind)
    write_tensors(bundle.path / "model.safetensors", weights)
    seal_files(bundle.path)
    with pytest.raises(FledgeError, match=f"says model.dtype = 'float32', and its files hold '{str(kind)[6:]}'"):
        load_bundle(bundle.path)


def test_an_index_without_files_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    config = small_config()
    folder = save_bundle(tmp_path / "b", config, tokenizer, small_model(config, tokenizer), shard_bytes=1000)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    seal_files(folder)
    with pytest.raises(FledgeError, match=r"index\.json names no files"):
        load_bundle(folder)


@pytest.mark.parametrize("place", ["../outside.safetensors", "{outside}", "below/../../outside.safetensors", "x.bin"])
def test_an_index_names_only_files_beside_it(tmp_path: Path, place: str) -> None:
    outside, folder = tmp_path / "outside.safetensors", tmp_path / "hub"
    (folder / "below").mkdir(parents=True)
    for path in (outside, folder / "x.bin"):
        write_tensors(path, {"a": torch.ones(8)})
    index = {"weight_map": {"a": place.format(outside=outside)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FledgeError, match=r"index\.json names files that are not beside it"):
        tensor_files(folder, "model")


def test_what_does_not_match_its_checksum_is_not_packed(bundle: Bundle, tmp_path: Path) -> None:
    path = bundle.path / "training" / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(FledgeError, match=r"state\.safetensors does not match its checksum"):
        pack(bundle.path, tmp_path / "packed.zip")
    assert not (tmp_path / "packed.zip").exists()


def test_long_headers_of_a_tar_are_not_read(tmp_path: Path) -> None:
    """A few kilobytes that would become gigabytes before a manifest is seen."""
    zstandard = pytest.importorskip("zstandard")
    size = 1 << 28
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, size
    path = tmp_path / "bomb.tar.zst"
    with open(path, "wb") as file, zstandard.ZstdCompressor().stream_writer(file) as stream:
        stream.write(info.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(size >> 20):
            stream.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(FledgeError, match="a header of 268,435,456 bytes"):
            load_bundle(path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_card_that_is_a_link_stays_out_of_the_archive(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("a key")
    (bundle.path / "README.md").unlink()
    os.symlink(tmp_path / "private", bundle.path / "README.md")
    packed = pack(bundle.path, tmp_path / "packed.zip")
    assert "README.md" not in zipfile.ZipFile(packed).namelist()
    (bundle.path / "README.md").unlink()
    (bundle.path / "README.md").write_text("long " * 300_000)
    with pytest.raises(FledgeError, match="Shorten it"):
        pack(bundle.path, tmp_path / "other.zip")


@pytest.mark.parametrize("suffix", [".zip", ".tar.zst"])
def test_a_cut_archive_is_refused_with_what_to_do_next(bundle: Bundle, tmp_path: Path, suffix: str) -> None:
    data = pack(bundle.path, tmp_path / f"whole{suffix}").read_bytes()
    for length in (0, 10, len(data) // 2):
        (tmp_path / f"cut{suffix}").write_bytes(data[:length])
        with pytest.raises(FledgeError, match=r"fledge bundle pack\.$"):
            load_bundle(tmp_path / f"cut{suffix}")
