#!/usr/bin/env python3
"""Build the npm package as wasm-pack.toml says, lay pkg-template/ over it, and make the tarball.

It is built in www/pkg, where the pages import it from; the tarball lands in .work/. Fails when the wasm
file is over the size budgets of wasm-pack.toml.
"""

import argparse
import gzip
import hashlib
import json
import shutil

import setup
from project import PACKAGE, ROOT, WORK, Failure, crate_version, environment, main, run, say, toml

# All that the package is made of: when none of it has changed, neither has the package.
SOURCES = (".cargo/config.toml", "Cargo.toml", "Cargo.lock", "wasm-pack.toml", "src", "shaders", "pkg-template", "tools/pack.py")
BUILT_FROM = WORK / "package-sources"
LICENCES = ("LICENSE-MIT", "LICENSE-APACHE")


def build():
    """The package, in www/pkg; built anew only when its sources have changed."""
    sources = sources_digest()
    if PACKAGE.exists() and BUILT_FROM.exists() and BUILT_FROM.read_text() == sources:
        return
    setup.for_packing()
    settings = toml("wasm-pack.toml")
    shutil.rmtree(PACKAGE, ignore_errors=True)
    BUILT_FROM.unlink(missing_ok=True)
    compile_wasm(settings["build"])
    optimise(wasm_file(), settings["wasm-opt"]["flags"])
    lay_template()
    BUILT_FROM.write_text(sources)


def sources_digest():
    digest = hashlib.sha256()
    for source in SOURCES:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0")
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def wasm_file():
    return PACKAGE / f"{toml('wasm-pack.toml')['build']['out-name']}_bg.wasm"


def compile_wasm(build):
    say("compiling to wasm")
    features = [f"--features={','.join(build['features'])}"] if build["features"] else []
    wasm_pack = ["wasm-pack", "--quiet", "build", "--mode=no-install", "--no-pack", "--no-opt", "--no-typescript"]
    options = [f"--{build['profile']}", f"--target={build['target']}", f"--out-name={build['out-name']}"]
    command = [*wasm_pack, *options, f"--out-dir={PACKAGE}", ROOT, *features]
    run(*command, env=environment())


def optimise(wasm, flags):
    say("optimising with wasm-opt")
    run("wasm-opt", *flags, wasm, "-o", wasm)


def lay_template():
    """The hand-written part of the package over the generated one, with the crate's version."""
    shutil.copytree(ROOT / "pkg-template", PACKAGE, dirs_exist_ok=True)
    (PACKAGE / ".gitignore").unlink(missing_ok=True)  # wasm-pack's, which would keep everything out of the tarball
    manifest = PACKAGE / "package.json"
    fields = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**fields, "version": crate_version()}, indent=2) + "\n")
    for licence in LICENCES:
        shutil.copy(ROOT / licence, PACKAGE)


def sizes():
    """(what, bytes, budget) of the wasm file, raw and through gzip."""
    budget = toml("wasm-pack.toml")["budget"]
    wasm = wasm_file().read_bytes()
    yield "raw", len(wasm), budget["raw-bytes"]
    yield "gzip", len(gzip.compress(wasm, 9)), budget["gzip-bytes"]


def check_sizes():
    over = []
    for what, size, budget in sizes():
        print(f"{wasm_file().name} {what:5} {size:>9,} bytes of at most {budget:,}")
        if size > budget:
            over.append(what)
    if over:
        raise Failure(f"the wasm file is over its {' and '.join(over)} budget (wasm-pack.toml)")


def tarball():
    """The package as npm would publish it; its path."""
    run("npm", "pack", "--silent", "--pack-destination", WORK, cwd=PACKAGE)
    return WORK / f"jird-{crate_version()}.tgz"


def pack():
    argparse.ArgumentParser(prog="./run pack", description=__doc__).parse_args()
    build()
    print(tarball())
    check_sizes()


if __name__ == "__main__":
    main(pack)
