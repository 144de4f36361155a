"""Certificates and kubeconfigs of the components, made at each start and valid for 30 days."""

from __future__ import annotations

from pathlib import Path

from paths import API_SERVICE, NODE, NODE_IP, PKI
from shell import run

_API_NAMES = (
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,"
    f"IP:127.0.0.1,IP:{NODE_IP},IP:{API_SERVICE}"
)
CERTIFICATES = {
    "apiserver": ("/CN=kube-apiserver", _API_NAMES),
    "admin": ("/O=system:masters/CN=admin", ""),
    "kubelet": (f"/O=system:nodes/CN=system:node:{NODE}", f"DNS:{NODE},IP:{NODE_IP}"),
    "controllers": ("/CN=system:kube-controller-manager", ""),
    "scheduler": ("/CN=system:kube-scheduler", ""),
    "proxy": ("/CN=system:kube-proxy", ""),
    "kubelet-client": ("/O=system:masters/CN=apiserver-kubelet-client", ""),
    "front-proxy": ("/CN=front-proxy-client", ""),
}
"""File → subject, and other names."""
CLIENTS = ("admin", "kubelet", "controllers", "scheduler", "proxy")
"""Certificates that get a kubeconfig."""


def make() -> None:
    """Write everything into PKI."""
    PKI.mkdir(parents=True, exist_ok=True)
    PKI.chmod(0o700)
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=lab-ca",
             "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip
    _openssl("genrsa", "-out", "sa.key", "2048")  # signs the tokens of service accounts
    _openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    for name, (subject, names) in CERTIFICATES.items():
        _certificate(name, subject, names or f"DNS:{name}")
    for name in CLIENTS:
        _kubeconfig(name)


def _openssl(*words: str) -> None:
    run(["openssl", *words], cwd=PKI)


def _certificate(name: str, subject: str, names: str) -> None:
    (PKI / "extensions").write_text(f"subjectAltName={names}\nextendedKeyUsage=clientAuth,serverAuth\n")
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", subject,
             "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
    _openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
             "-days", "30", "-out", f"{name}.crt", "-extfile", "extensions")  # fmt: skip


def _kubeconfig(name: str) -> None:
    file: Path = PKI / f"{name}.conf"

    def config(*words: str) -> None:
        run(["kubectl", "config", f"--kubeconfig={file}", *words], cwd=PKI)

    config("set-cluster", "lab", f"--server=https://{NODE_IP}:6443", "--certificate-authority=ca.crt",
           "--embed-certs")  # fmt: skip
    config("set-credentials", name, f"--client-certificate={name}.crt", f"--client-key={name}.key",
           "--embed-certs")  # fmt: skip
    config("set-context", "lab", "--cluster=lab", f"--user={name}")
    config("use-context", "lab")
