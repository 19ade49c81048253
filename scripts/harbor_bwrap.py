"""An environment for Harbor that needs no containers, and an agent that runs a script.

For scripts/harbor-compare only. One directory stands for the container's own file system; every
command runs in bubblewrap, with the system's directories read-only over it.
"""
import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities

SYSTEM = ["/usr", "/etc"]
LINKS = ["/bin", "/sbin", "/lib", "/lib32", "/lib64"]


def below(top):
    """Copies one file. Agents leave links, and these copies are made outside of the sandbox: what is
    written through one would be a file of this machine."""
    real = Path(top).resolve()

    def copy(source, target):
        if os.path.islink(target):
            os.remove(target)
        if not Path(target).resolve().is_relative_to(real):
            raise RuntimeError(f"{target} leads out of {top}")
        return shutil.copy2(source, target, follow_symlinks=False)

    return copy


def tree(source, target, top):
    """Copies a directory with all that is in it, over what is there."""
    copy = below(top)
    if not Path(target).resolve().is_relative_to(Path(top).resolve()):
        raise RuntimeError(f"{target} leads out of {top}")
    shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True, copy_function=copy)


class Bubblewrap(BaseEnvironment):
    """Runs packages that name a docker_image on the system's own programs instead."""

    def __init__(self, *args, **kwargs):
        self.root = Path(tempfile.mkdtemp(prefix="harbor-bwrap-"))
        super().__init__(*args, **kwargs)

    @staticmethod
    def type():
        return "bubblewrap"

    @property
    def capabilities(self):
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self):
        if not self.task_env_config.docker_image:
            raise RuntimeError("only packages with a docker_image")

    def host(self, path):
        return self.root / str(path).lstrip("/")

    async def start(self, force_build):
        workdir = self.task_env_config.workdir or "/"
        for path in [workdir, "/logs/agent", "/logs/verifier", "/logs/artifacts", "/tmp", "/root"]:
            self.host(path).mkdir(parents=True, exist_ok=True)
        await self._upload_environment_dir_after_start()

    async def stop(self, delete):
        shutil.rmtree(self.root, ignore_errors=True)

    async def upload_file(self, source_path, target_path):
        target = self.host(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        below(self.root)(source_path, target)

    async def upload_dir(self, source_dir, target_dir):
        tree(source_dir, self.host(target_dir), self.root)

    async def download_file(self, source_path, target_path):
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        below(Path(target_path).parent)(self.own(source_path), target_path)

    async def download_dir(self, source_dir, target_dir):
        tree(self.own(source_dir), target_dir, target_dir)

    def own(self, path):
        """What lies in the environment itself, and not where a link of an agent leads on this machine."""
        host = self.host(path)
        if not host.resolve().is_relative_to(self.root.resolve()):
            raise RuntimeError(f"{path} leads out of the environment")
        return host

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        argv = ["bwrap", "--die-with-parent", "--unshare-pid", "--cap-drop", "ALL"]
        argv += ["--bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev"]
        for path in SYSTEM:
            argv += ["--ro-bind", path, path]
        for path in LINKS:
            if os.path.islink(path):
                if not os.path.islink(self.host(path)):
                    argv += ["--symlink", os.readlink(path), path]
            elif os.path.exists(path):
                argv += ["--ro-bind", path, path]
        argv += ["--chdir", cwd or self.task_env_config.workdir or "/", "--", "bash", "-c", command]
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        variables.update(self._merge_env(env) or {})
        process = await asyncio.create_subprocess_exec(
            *argv, env=variables, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_sec)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
            raise RuntimeError(f"command timed out after {timeout_sec} s") from None
        return ExecResult(
            stdout=out.decode(errors="replace"), stderr=err.decode(errors="replace"),
            return_code=process.returncode,
        )


class Scripted(BaseAgent):
    """Runs a command of the dataset's project; `{instruction}` is one argument."""

    def __init__(self, *args, directory, words, **kwargs):
        super().__init__(*args, **kwargs)
        self.directory, self.words = directory, words

    @staticmethod
    def name():
        return "scripted"

    def version(self):
        return "1"

    async def setup(self, environment):
        await environment.upload_dir(self.directory, "/project")

    async def run(self, instruction, environment, context):
        def placed(word):
            word = word.replace("{instruction}", instruction.removesuffix("\n"))
            word = f"/project/{word.split('/', 1)[1]}" if word.startswith("agent/") else word
            return "'" + word.replace("'", "'\\''") + "'"

        await environment.exec(" ".join(placed(word) for word in self.words))
