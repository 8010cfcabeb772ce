"""The real nginx, as a process of its own: with the configuration that is shipped, or with one that nobody tuned."""

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.program import ROOT, free_port
from tests.server import wait_until

SHIPPED = ROOT / "deploy" / "nginx" / "tailrace.conf"

# Debian has it in /usr/sbin, which is not on everybody's path.
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

needs_nginx = pytest.mark.skipif(NGINX is None, reason="needs Debian's package nginx-light")

# What a person has who wrote `proxy_pass` and nothing else.
BARE = """
server {
    listen 80;
    location / {
        proxy_pass http://tailrace;
    }
}
upstream tailrace {
    server tailrace:8000;
}
"""

# What stands around conf.d, and turns on what would spoil streams. One process, so that it needs no user of its own.
AROUND = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log error;
events {{
    worker_connections 1024;
}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    gzip on;
    gzip_types *;
    gzip_proxied any;
    include {folder}/conf.d/*.conf;
}}
"""


@dataclass(frozen=True)
class Nginx:
    port: int
    pid: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


def shipped(location: str = "") -> str:
    """The shipped file; with `location`, that example of it instead of `location /`: "is cut off" or "stays"."""
    text = SHIPPED.read_text()
    if not location:
        return text
    [block] = re.findall(rf"# The prefix {location}.*\n    #\n((?:    # .*\n)+)", text)
    example = block.replace("    # ", "    ")
    text, count = re.subn(r"    location / \{\n(?:        .*\n)+    \}\n", example.replace("\\", r"\\"), text)
    assert count == 1
    return text


@contextlib.contextmanager
def nginx(folder: Path, configuration: str, *pod_ports: int) -> Iterator[Nginx]:
    """nginx with `configuration` in its conf.d, of which only the pods, the port and the logs' folder are replaced."""
    assert NGINX is not None
    port = free_port()
    servers = "".join(rf"    server 127.0.0.1:{pod_port}\1;\n" for pod_port in pod_ports)
    for pattern, new in (
        (r" listen 80;", f" listen 127.0.0.1:{port};"),
        (r"\n    server tailrace:8000(.*);\n", "\n" + servers),
    ):
        configuration, count = re.subn(pattern, new, configuration)
        assert count == 1
    configuration = configuration.replace("/var/log/nginx/", f"{folder}/")
    (folder / "conf.d").mkdir(parents=True)
    (folder / "conf.d" / "tailrace.conf").write_text(configuration)
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder))
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen([NGINX, "-p", folder, "-c", "nginx.conf"], stdout=output, stderr=output)
    made = Nginx(port, process.pid, folder)
    try:
        wait_until(lambda: (folder / "pid").exists() or process.poll() is not None, 10, "the start of nginx")
        assert process.poll() is None, made.logs
        yield made
    finally:
        process.terminate()
        process.wait(10)
