import pytest

from proxy_addons.hosts import check_hosts
from proxy_addons.hosts import host_matches


@pytest.mark.parametrize("wrong", ["*", "*.", "", "a b", "https://a.b", "a.b:443", "a.*.b", "a..b", "*a.b", "a.b/c"])
def test_what_is_no_pattern_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="use a name or an address"):
        check_hosts([wrong])


def test_patterns() -> None:
    assert check_hosts(["PyPI.example", "*.a.b", "127.0.0.1", "::1"]) == ("pypi.example", "*.a.b", "127.0.0.1", "::1")
    assert host_matches("c.d", ("*.a.b", "c.d"))
    assert host_matches("x.y.a.b", ("*.a.b", "c.d"))
    assert not any(host_matches(host, ("*.a.b", "c.d")) for host in ("a.b", "xa.b", "x.c.d", "c.d.e", ""))
