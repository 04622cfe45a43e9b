"""How a check runs: programs with a time limit and a log, in the time that is left."""
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# All logs together, and one of them: its first and last halves.
MOST_LOGS, MOST_LOG = 15 << 20, 256 << 10
# After its time a program is told to end, so that it can say what it does, then is killed.
GRACE_SECONDS = 3


class Failed(Exception):
    """A check that found something wrong."""


class Skipped(Exception):
    """A check that this machine has no use for, or that lacks something here."""


class NoTime(Exception):
    """The call's time ended in a check that would have had more."""


class Done:
    """A program that ended."""

    def __init__(self, status, out, late):
        self.status, self.out, self.late = status, out, late

    def error(self):
        """The line that says what was wrong."""
        if "hang: stream " in self.out:
            return f"a step has not ended: {streams_of(self.out)}"
        lines = [line.strip() for line in self.out.splitlines() if line.strip()]
        for mark in ("dhelix: error:", "CUDA:", "cuBLASLt:", "NCCL:", "WRONG ", "bench_gpu:", "ERROR:", "========= "):
            for line in lines:
                if mark in line and "COMPUTE-SANITIZER" not in line:
                    return line
        return lines[-1] if lines else "it said nothing"


class Bench:
    """One call of gpu_check.sh."""

    def __init__(self, a, results):
        self.small, self.out, self.results = a.small, a.out, results
        self.begin = time.monotonic()
        self.end = self.begin + a.minutes * 60
        self.root = Path(os.environ.get("DHELIX_BUNDLE", HERE.parents[1]))
        self.work = self.out / "work"
        self.part = self.name = ""
        self.figures = {}

    def seconds_left(self):
        return self.end - time.monotonic()

    def program(self, name):
        """A program of the bundle; Skipped where it has none."""
        path = self.root / "bin" / name
        if not path.exists():
            raise Skipped(f"the bundle has no {name}")
        return str(path)

    def machine(self):
        return self.results["machine"]

    def need_gpu(self):
        """Parts that are on a GPU say once, in the same words, why they are not."""
        why = self.machine().get("no_gpu")
        if why:
            raise Skipped(why)

    def log_path(self):
        name = "".join(c if c.isalnum() else "_" for c in f"{self.part} {self.name}")[:100]
        return self.out / "logs" / f"{name}.log"

    def run(self, words, limit, env=None, missing_ok=False):
        """A program to its end, or to its limit; its output goes to the log. A status that is not 0 is Failed unless
        missing_ok."""
        seconds = min(limit, self.seconds_left())
        begin = time.monotonic()
        # Ranks are threads on one GPU, also where the machine has several.
        # Attention by wgmma that was found wrong here spoils nothing else.
        off = {"DHELIX_WGMMA": "off"} if self.machine().get("wgmma", "").startswith("off") else {}
        env = {"CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": str(processors()), **os.environ, **off, **(env or {})}
        try:
            child = subprocess.Popen([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     env=env, cwd=self.work, start_new_session=True)
        except OSError as error:
            raise Failed(f"{words[0]} cannot be started: {error.strerror}") from error
        late = False
        try:
            out, _ = child.communicate(timeout=max(1, seconds))
        except subprocess.TimeoutExpired:
            late = True
            out = end_session(child)
        except BaseException:
            end_session(child)  # it has a session of its own, and would keep the GPU
            raise
        text = out.decode("utf-8", "replace")
        self.log(words, text, child.returncode, time.monotonic() - begin, late)
        done = Done(child.returncode, text, late)
        if late and seconds < limit:
            raise NoTime()
        if late:
            raise Failed(f"did not end within {seconds:.0f} s: {done.error()}")
        if done.status != 0 and not missing_ok:
            raise Failed(f"{done.error()} (status {done.status})")
        return done

    def log(self, words, text, status, seconds, late):
        """One behind the other in the check's log; the middle of a long one is cut, and nothing where all have enough."""
        if len(text) > MOST_LOG:
            text = f"{text[:MOST_LOG // 2]}\n[... {len(text) - MOST_LOG} characters are left out ...]\n{text[-MOST_LOG // 2:]}"
        used = sum(f.stat().st_size for f in (self.out / "logs").iterdir())
        if used + len(text.encode()) > MOST_LOGS:
            text = "[the logs have their size]\n"
        with open(self.log_path(), "a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(map(str, words))}\n{text}\n[status {status} after {seconds:.1f} s{', ended' if late else ''}]\n")

    def do(self, part, check):
        """A check: its record."""
        self.part, self.name, self.figures = part, check.name, {}
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        begin = time.monotonic()
        status, message = "passed", ""
        try:
            message = check.run(self) or ""
        except Failed as failed:
            status, message = "failed", str(failed)
        except Skipped as skipped:
            status, message = "skipped", str(skipped)
        except NoTime:
            status = "no time"
        except (OSError, ValueError, KeyError, IndexError) as error:
            status, message = "failed", f"its results cannot be read: {type(error).__name__}: {error}"
        shutil.rmtree(self.work, ignore_errors=True)
        record = {"status": status, "message": message[:2000], "seconds": round(time.monotonic() - begin, 1)}
        if self.figures:
            record["figures"] = self.figures
        if self.log_path().exists():
            record["log"] = str(self.log_path().relative_to(self.out))
        return record

    def keep_wrong(self):
        """Environment of programs that store the first wrong result of this check, while none is stored."""
        folder = self.out / "wrong"
        return {} if (folder / "wrong.json").exists() else {"DHELIX_KEEP": str(folder)}


def processors(quota_of="/sys/fs/cgroup/cpu.max"):
    """How many processors this process may use: a container may see all of its machine's, and have a few."""
    n = len(os.sched_getaffinity(0))
    try:
        quota, period = Path(quota_of).read_text(encoding="ascii").split()
        return n if quota == "max" else max(1, min(n, int(quota) // int(period)))
    except (OSError, ValueError):
        return n


def end_session(child):
    """Tells a program and what it started to end, then kills them. What it had said."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, sign)
        except ProcessLookupError:
            pass
        try:
            return child.communicate(timeout=GRACE_SECONDS)[0]
        except subprocess.TimeoutExpired:
            continue
    return b""


def streams_of(text):
    """What a program said of its streams before it ended (src/run/cuda/hang.c)."""
    lines = [line.split("hang: ", 1)[1].strip() for line in text.splitlines() if "hang: stream " in line]
    busy = [line for line in lines if "under way" in line]
    return "; ".join(busy or lines)


def json_lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.startswith("{")]
