#!/usr/bin/env python3
"""Install what the other commands need. They call the functions below themselves, so nobody has to run this first.

Each function returns at once when its work has been done before. Versions are pinned here, in Cargo.toml
(wasm-bindgen), in tools/package.json and in tools/requirements.txt.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import sys

from project import NODE, PYTHON, ROOT, TOOLS, WASM_TARGET, Failure, environment, main, output_of, run, say, toml

WASM_PACK = "0.15.1"
GECKODRIVER = "0.37.1"

MACHINE = os.uname().machine
CHROMIUM = pathlib.Path("/usr/bin/chromium")
CHROMEDRIVER = pathlib.Path("/usr/bin/chromedriver")
FIREFOX = pathlib.Path("/usr/bin/firefox-esr")
VULKAN_LOADER = pathlib.Path(f"/usr/lib/{MACHINE}-linux-gnu/libvulkan.so.1")
LAVAPIPE_ICD = pathlib.Path(f"/usr/share/vulkan/icd.d/lvp_icd.{MACHINE}.json")
SWIFTSHADER_ICD = pathlib.Path("/usr/lib/chromium/vk_swiftshader_icd.json")

# The file that shows that a Debian package is there, and the package.
BROWSER_FILES = {
    CHROMIUM: "chromium",
    CHROMEDRIVER: "chromium-driver",
    FIREFOX: "firefox-esr",
}
VULKAN_FILES = {
    VULKAN_LOADER: "libvulkan1",
    LAVAPIPE_ICD: "mesa-vulkan-drivers",
    SWIFTSHADER_ICD: "chromium",
}


def system_packages(files):
    """Debian packages, by apt, for those of `files` that are missing."""
    packages = sorted({package for file, package in files.items() if not file.exists()})
    if not packages:
        return
    names = " ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Failure(f"these Debian packages are missing: {names}. Install them, or run this as root with apt-get")
    say(f"installing {names}")
    quiet = environment(DEBIAN_FRONTEND="noninteractive")
    run("apt-get", "update", "-qq", env=quiet)
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, env=quiet)
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        raise Failure(f"{names} are installed, but did not bring {', '.join(missing)}")


def wasm_target():
    """Rust's standard library for wasm."""
    if not shutil.which("cargo"):
        raise Failure("cargo is missing: install Rust with rustup")
    sysroot = (output_of("rustc", "--print", "sysroot") or "").strip()
    if (pathlib.Path(sysroot) / "lib/rustlib" / WASM_TARGET).exists():
        return
    if not shutil.which("rustup"):
        raise Failure(f"this Rust lacks the target {WASM_TARGET}, and there is no rustup to add it")
    run("rustup", "target", "add", WASM_TARGET)


def cargo_tool(package, version, binary, *options):
    """A program from crates.io, in .work/tools/bin. Built to be ready soon rather than to be fast."""
    if version in (output_of(TOOLS / "bin" / binary, "--version") or "").split():
        return
    say(f"building {package} {version} (some minutes, once)")
    quick = environment(
        CARGO_PROFILE_RELEASE_OPT_LEVEL="0",
        CARGO_PROFILE_RELEASE_LTO="off",
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS="16",
        CARGO_PROFILE_RELEASE_DEBUG="0",
        CARGO_TARGET_DIR=str(TOOLS / "target"),  # what the tools have in common is built once
    )
    install = ("cargo", "install", "--quiet", "--root", TOOLS, f"{package}@{version}", *options)
    # From outside the repository, so that none of its settings reach the tool's build.
    TOOLS.mkdir(parents=True, exist_ok=True)
    try:
        run(*install, "--locked", cwd=TOOLS, env=quick)
    except Failure:
        # A lock file can name a version that has been yanked since, or that a mirror lacks.
        say(f"building {package} as its lock file says failed: trying with newer dependencies")
        run(*install, cwd=TOOLS, env=quick)


def wasm_bindgen():
    """The command line's version must be the very one of the crate, which Cargo.toml therefore pins."""
    crate = toml("Cargo.toml")["target"]['cfg(target_arch = "wasm32")']["dependencies"]["wasm-bindgen"]
    requirement = crate if isinstance(crate, str) else crate["version"]
    if not requirement.startswith("="):
        raise Failure(f"Cargo.toml asks for wasm-bindgen {requirement!r}; it must pin one version, as in '=0.2.130'")
    # Its default features are for talking to drivers over TLS; ours listen on this machine.
    cargo_tool("wasm-bindgen-cli", requirement[1:], "wasm-bindgen", "--no-default-features")


def node_packages(manifest, folder):
    """The npm packages that the lock file beside `manifest`/package.json names, in `folder`/node_modules."""
    if not shutil.which("npm"):
        raise Failure("npm is missing: install Node.js 20 or later")
    lock = manifest / "package-lock.json"
    if not stale(folder / "node_modules", lock):
        return
    say(f"installing npm packages for {manifest.relative_to(ROOT)}")
    folder.mkdir(parents=True, exist_ok=True)
    if folder != manifest:
        shutil.copy(manifest / "package.json", folder)
        shutil.copy(lock, folder)
    run("npm", "ci", "--silent", "--no-audit", "--no-fund", cwd=folder)
    mark_fresh(folder / "node_modules", lock)


def python_packages():
    """What tools/models.py imports, in .work/python."""
    requirements = ROOT / "tools" / "requirements.txt"
    sys.path.insert(0, str(PYTHON))
    if not stale(PYTHON, requirements):
        return
    say("installing Python packages")
    shutil.rmtree(PYTHON, ignore_errors=True)
    # --target instead of a virtual environment, which needs a Debian package of its own.
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", PYTHON, "-r", requirements)
    mark_fresh(PYTHON, requirements)


def stale(folder, pins):
    """Whether `folder` was filled from another state of the file `pins`, by another Python, or never."""
    stamp = folder / ".pins"
    return not stamp.exists() or stamp.read_text() != fingerprint(pins)


def mark_fresh(folder, pins):
    (folder / ".pins").write_text(fingerprint(pins))


def fingerprint(pins):
    return f"{sys.version_info[:2]} {hashlib.sha256(pins.read_bytes()).hexdigest()}"


def for_packing():
    wasm_target()
    wasm_bindgen()
    cargo_tool("wasm-pack", WASM_PACK, "wasm-pack")
    node_packages(ROOT / "tools", NODE)


def for_browsers():
    system_packages(BROWSER_FILES)


def for_gpu():
    system_packages(BROWSER_FILES | VULKAN_FILES)


def for_tests():
    for_gpu()
    for_packing()
    cargo_tool("geckodriver", GECKODRIVER, "geckodriver")
    node_packages(ROOT / "tests" / "e2e", ROOT / "tests" / "e2e")


def setup():
    argparse.ArgumentParser(prog="./run setup", description=__doc__).parse_args()
    for_tests()
    python_packages()
    say("everything is installed")


if __name__ == "__main__":
    main(setup)
