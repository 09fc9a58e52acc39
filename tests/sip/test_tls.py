from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from callagent.sip import certificate_end


@pytest.mark.parametrize("days", [10, 20_000])
def test_the_end_is_read_in_both_forms_of_time(days: int, tmp_path: Path) -> None:
    file = tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-days", str(days)),
            *("-keyout", str(tmp_path / "key.pem"), "-out", str(file)),
        ],
        check=True,
        capture_output=True,
    )
    assert abs(certificate_end(file) - datetime.now(UTC) - timedelta(days=days)) < timedelta(hours=1)


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_what_is_no_certificate_is_told(text: str, tmp_path: Path) -> None:
    file = tmp_path / "certificate.pem"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"certificate|Certificate"):
        certificate_end(file)
