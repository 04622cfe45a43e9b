"""Hosts whose links drop, slow down and die, and what becomes of the run.

    hosts.py DHELIX [--schedules N] [--seed S] [--only I]

Two to four network namespaces on a bridge of their own stand for hosts, as in bench/netns; ranks
under Open MPI send over TCP. At a drawn moment the link of one host goes down for a time, is slow for
a time, or goes down for good, or its rank is killed or stopped. Checked, as in elastic.py: the run
ends, with the bits of the run by hand, nothing lost beyond the interval, and the rank that did not
come is named within parallel.timeout_s. Needs root, ip, tc and Open MPI; without them nothing is run.
"""
import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import elastic
from started import clean_up_when_stopped, draw_seed, environment, send, settings

SUBNET = "192.0.2"  # TEST-NET-1: routed nowhere
AGENT = "bench/netns"
LAUNCHER = """#!/bin/bash
hosts=
for ((i = 0; i < {n}; i++)); do # refused is an answer too
    timeout 2 bash -c "</dev/tcp/{subnet}.$((i + 1))/9" 2>/dev/null
    [ $? -eq 124 ] || hosts+=,dh-$i:1
done
exec mpirun --host "${{hosts#,}}" --bind-to none --mca pml ob1 --mca btl tcp,self --mca plm rsh \\
    --mca btl_tcp_if_include {subnet}.0/24 --mca oob_tcp_if_include {subnet}.0/24 \\
    --mca plm_rsh_agent netns-agent.sh "$@"
"""


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, stdin=subprocess.DEVNULL, capture_output=True, text=True)


class Network:
    """Namespaces with names of this process, and a bridge in one more."""

    def __init__(self, n):
        self.name, self.n, self.made = f"dhelix-{os.getpid()}", n, []
        self.hub = self.add("dh-hub")
        ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.hub, "link", "set", "bridge", "up")
        for i in range(n):
            host = self.add(f"dh-{i}")
            ip("-n", self.hub, "link", "add", f"port{i}", "type", "veth", "peer", "name", "wire", "netns", host)
            ip("-n", self.hub, "link", "set", f"port{i}", "master", "bridge", "up")
            ip("-n", host, "address", "add", f"{SUBNET}.{i + 1}/24", "dev", "wire")
            for device in ("lo", "wire"):
                ip("-n", host, "link", "set", device, "up")

    def add(self, host):
        name = f"{self.name}-{host}"
        ip("netns", "add", name)
        self.made.append(name)
        return name

    def set_link(self, i, state):
        ip("-n", self.hub, "link", "set", f"port{i}", state)

    def set_rate(self, i, kbit):
        what = ["qdisc", "add", "dev", f"port{i}", "root", "tbf", "rate", f"{kbit}kbit", "burst", "16kb", "limit", "1mb"]
        if not kbit:
            what = ["qdisc", "delete", "dev", f"port{i}", "root"]
        subprocess.run(["tc", "-n", self.hub] + what, stdin=subprocess.DEVNULL, capture_output=True)

    def end(self):
        for name in self.made:
            for pid in ip("netns", "pids", name, check=False).stdout.split():
                send(int(pid), signal.SIGKILL)
        for name in self.made:
            ip("netns", "delete", name, check=False)


class Schedule(elastic.Schedule):
    def __init__(self, test, index):
        super().__init__(test, index)
        self.apart = True
        self.n = self.draw.randint(2, 4)
        self.mesh = f"parallel.dp={self.n}"
        what = self.draw.choice(["drop", "slow", "die", "die", "kill", "stop"])
        # Open MPI ends all where a host is gone while ranks start.
        phases = elastic.PHASES[1:4]
        self.attacks = [(what, self.draw.choice(phases), 1 + self.draw.randrange(self.n - 1), self.draw.random())]
        self.struck_at = None

    def describe(self):
        what, phase, rank, _ = self.attacks[0]
        return f"{self.index}: {self.n} hosts: {what} ({phase}, host {rank})"

    def command(self):
        words = ["ip", "netns", "exec", f"{self.network.name}-dh-0", "unshare", "--uts", "sh", "-c",
                 'hostname dh-0 && exec "$@"', "sh", self.test.args.dhelix, "launch", self.test.job, "--quiet"]
        return words + settings(f"{self.mesh} {self.more} out={self.out} parallel.timeout_s={elastic.PATIENCE_S}") + [
            "--launcher", self.write_launcher()]

    def write_launcher(self):
        """One that leaves out hosts that do not answer, at each start."""
        name = os.path.join(self.test.tmp, f"launcher-{self.index}")
        with open(name, "w") as f:
            f.write(LAUNCHER.format(n=self.n, subnet=SUBNET))
        os.chmod(name, 0o755)
        return name

    def strike(self, attack, run):
        what, _, host, at = attack
        self.struck_at = time.monotonic()
        if what in ("kill", "stop"):
            return super().strike(attack, run)
        if what == "slow":
            self.network.set_rate(host, 100)
            time.sleep(0.3 + at)
            self.network.set_rate(host, 0)
            return True
        self.network.set_link(host, "down")
        if what == "die":
            self.stopped = host
            return True
        time.sleep(0.2 + at)
        self.network.set_link(host, "up")
        return True

    def run(self):
        self.network = Network(self.n)
        os.environ["DHELIX_NETNS"] = self.network.name
        try:
            return super().run()
        finally:
            self.network.end()


def why_not():
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc", "unshare", "hostname", "mpirun"):
        if not shutil.which(tool):
            return f"no {tool}"
    version = subprocess.run(["mpirun", "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    if "Open MPI" not in version:
        return "mpirun is not Open MPI's"
    try:
        Network(2).end()
    except subprocess.CalledProcessError as e:
        return f"no namespaces with links: {e.stderr.strip()}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dhelix")
    parser.add_argument("--schedules", type=int, default=3)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", type=int)
    args = parser.parse_args()
    clean_up_when_stopped()
    args.seed = draw_seed("hosts", args.seed, 8)
    args.threads = args.orphans = args.keep = False
    args.dhelix = os.path.abspath(args.dhelix)
    reason = why_not()
    if reason:
        print(f"hosts: skipped: {reason}")
        return 0
    os.environ["PATH"] = os.path.abspath(AGENT) + ":" + os.environ["PATH"]
    with tempfile.TemporaryDirectory(prefix="dhelix-hosts-") as tmp:
        test = elastic.Test(args, tmp, batch=12)
        which = [args.only] if args.only is not None else range(args.schedules)
        failed = [i for i in which if not Schedule(test, i).run()]
    print(f"{len(which)} schedules, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
