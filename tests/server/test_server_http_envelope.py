"""The envelope: which requests pass, in which order they are refused, and what an answer carries."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_state_driver import refusal_of

from streamclient.server.auth import Credentials, Signer
from streamclient.server.envelope import MAX_BODY_BYTES, OpenedRequest, error_body, open_request, seal
from streamclient.server.server_errors import ServiceError
from streamclient.wire import schema, signature

NOW = datetime(2026, 11, 21, 14, 53, 41, tzinfo=timezone.utc)
CREDENTIALS = Credentials("inst", "AKID", "SECRET")
Headers = dict[str, str]


def unsigned(body: bytes = b"", **changes: str) -> Headers:
    headers = {
        "x-ots-date": "2026-11-21T14:53:41.000Z",
        "x-ots-apiversion": "2015-12-31",
        "x-ots-accesskeyid": "AKID",
        "x-ots-instancename": "inst",
        "x-ots-contentmd5": signature.content_md5(body),
    }
    headers.update({"x-ots-" + name.replace("_", "-"): value for name, value in changes.items()})
    return headers


def signed(body: bytes = b"", path: str = "/ListTable", secret: str = "SECRET", **changes: str) -> Headers:
    headers = unsigned(body, **changes)
    headers["x-ots-signature"] = signature.sign_request_v2(secret, path, headers)
    return headers


def signed_v4(body: bytes = b"", secret: str = "SECRET", region: str = "cn-hangzhou") -> Headers:
    headers = unsigned(body, signdate="20261121", signregion=region)
    key = signature.derive_v4_key(secret, "20261121", region)
    headers["x-ots-signaturev4"] = signature.sign_request_v4(key, "/ListTable", headers)
    return headers


def opened(headers: Headers, body: bytes = b"", path: str = "/ListTable") -> OpenedRequest:
    return open_request(path, headers, body, CREDENTIALS, NOW)


def refusal(headers: Headers, body: bytes = b"", path: str = "/ListTable") -> tuple[int, str, str]:
    return refusal_of(opened, headers, body, path)


def without(headers: Headers, name: str) -> Headers:
    return {each: value for each, value in headers.items() if each != f"x-ots-{name}"}


AUTH, INVALID = (403, "OTSAuthFailed"), (400, "OTSParameterInvalid")
MISMATCH = (*AUTH, "Signature mismatch.")


def test_a_v2_request_passes_and_is_answered_with_the_secret() -> None:
    assert opened(signed(b"body"), b"body") == OpenedRequest("ListTable", b"body", Signer("AKID", "SECRET"))


def test_a_v4_request_passes_and_is_answered_with_the_derived_key() -> None:
    key = signature.derive_v4_key("SECRET", "20261121", "cn-hangzhou")

    assert opened(signed_v4()).signer == Signer("AKID", key)


def test_headers_unknown_here_take_part_in_the_signature() -> None:
    """Java signs trace headers, and users add their own."""
    headers = signed(sdk_traceid="abc", request_tag="x", ststoken="token")

    assert opened(headers).operation == "ListTable"
    headers["x-ots-sdk-traceid"] = "changed"
    assert refusal(headers) == MISMATCH


@pytest.mark.parametrize("make", [signed, signed_v4])
def test_a_wrong_secret_is_refused(make: Callable[..., Headers]) -> None:
    assert refusal(make(secret="guess")) == MISMATCH


def test_a_signature_for_another_operation_is_refused() -> None:
    assert refusal(signed(path="/ListTable"), path="/DeleteTable") == MISMATCH


def test_another_instance_is_not_found() -> None:
    assert refusal(signed(instancename="other")) == (*AUTH, "The instance is not found.")


REFUSED: dict[str, tuple[Headers, tuple[int, str, str]]] = {
    "a V4 signature for another region": ({**signed_v4(), "x-ots-signregion": "cn-beijing"}, MISMATCH),
    "an unknown key id": (signed(accesskeyid="other"), (*AUTH, "The AccessKeyID does not exist.")),
    **{
        f"no {name}": (without(signed(), name), (*INVALID, f"Missing header: x-ots-{name}."))
        for name in ("date", "apiversion", "accesskeyid", "instancename", "contentmd5", "signature")
    },
    **{
        f"no {name} for V4": (without(signed_v4(), name), (*INVALID, f"Missing header: x-ots-{name}."))
        for name in ("signdate", "signregion")
    },
    **{
        f"the date {date!r}": (signed(date=date), (*INVALID, f"Invalid date format: {date}."))
        for date in ("", "yesterday", "2026-11-21 14:53:41", "2026-13-21T14:53:41.000Z", "2026-11-21T14:53")
    },
    "a body that was changed": (
        signed(b"body"),
        (*AUTH, "Mismatch between MD5 value of request body and x-ots-contentmd5 in header."),
    ),
}


@pytest.mark.parametrize(("headers", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_with_headers_is_named(headers: Headers, expected: tuple[int, str, str]) -> None:
    assert refusal(headers) == expected


@pytest.mark.parametrize(
    "date",
    [
        "2026-11-21T14:53:41.000Z",
        "2026-11-21T14:53:41.123Z",
        "2026-11-21T14:53:41.11212Z",
        "2026-11-21T14:53:41.1121Z",
        "2026-11-21T14:53:41.112123456Z",
        "2026-11-21T14:53:41Z",
    ],
)
def test_dates_of_every_sdk_are_read(date: str) -> None:
    """Go's digits behind the point are no fraction; their number varies from 3 to 6."""
    assert opened(signed(date=date)).operation == "ListTable"


@pytest.mark.parametrize(("minutes", "passes"), [(-16, False), (-14, True), (0, True), (14, True), (16, False)])
def test_a_date_may_be_off_by_a_quarter_of_an_hour(minutes: int, passes: bool) -> None:
    date = (NOW + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    if passes:
        assert opened(signed(date=date)).operation == "ListTable"
    else:
        assert refusal(signed(date=date)) == (*AUTH, f"Mismatch between system time and x-ots-date: {date}.")


@pytest.mark.parametrize(
    "date", ["Sat, 21 Nov 2026 14:53:41 GMT", "2000-01-01T00:00:00.000Z", "2026-11-21T14:53:41.000Z"]
)
def test_another_api_version_is_refused_before_its_date_is_read(date: str) -> None:
    """SDKs of that version write dates in another form; their users have to read what is really wrong."""
    status, code, text = refusal(signed(b"", apiversion="2014-08-08", date=date))

    assert (status, code) == INVALID
    assert text.startswith("Unsupported API version: 2014-08-08")


@pytest.mark.parametrize("path", ["/", "//ListTable", "/List Table", "/ListTable/", "/ListTable?x", "/.."])
def test_a_path_that_names_no_operation_is_refused(path: str) -> None:
    assert refusal(signed(path=path), path=path) == (*INVALID, f"Unsupported operation: {path[1:]}.")


@pytest.mark.parametrize("path", ["/Search", "/tunnel/create"])
def test_operations_not_served_here_reach_the_engine_that_names_them(path: str) -> None:
    assert opened(signed(path=path), path=path).operation == path[1:]


def test_checks_come_in_the_order_of_the_documentation() -> None:
    """A request with every fault shows the first; mending it shows the next."""
    body = b"x"
    headers = signed(body, date="never", accesskeyid="other", instancename="other", contentmd5="wrong")
    del headers["x-ots-apiversion"]
    seen = []
    for name, mended in (
        ("apiversion", "2015-12-31"),
        ("date", "2026-11-21T14:53:41.000Z"),
        ("contentmd5", signature.content_md5(body)),
        ("accesskeyid", "AKID"),
    ):
        seen.append(refusal(headers, body)[2].split(" ")[0])
        headers[f"x-ots-{name}"] = mended
    seen.append(refusal(headers, body)[2])
    headers["x-ots-signature"] = signature.sign_request_v2("SECRET", "/ListTable", headers)
    seen.append(refusal(headers, body)[2])

    assert seen == ["Missing", "Invalid", "Mismatch", "The", "Signature mismatch.", "The instance is not found."]


def test_a_body_above_the_limit_is_refused_before_anything_else() -> None:
    too_large = (413, "OTSRequestBodyTooLarge", "The size of POST data is too large.")

    assert refusal({}, bytes(MAX_BODY_BYTES + 1)) == too_large


def compressed(body: bytes, size: int) -> tuple[Headers, bytes]:
    return signed(body, request_compress_type="deflate", request_compress_size=str(size)), body


def deflated(raw: bytes, size: int | None = None) -> tuple[Headers, bytes]:
    return compressed(zlib.compress(raw), len(raw) if size is None else size)


@pytest.mark.parametrize("raw", [b"raw body" * 1000, bytes(MAX_BODY_BYTES)], ids=["small", "exactly the limit"])
def test_a_compressed_request_is_inflated(raw: bytes) -> None:
    assert opened(*deflated(raw)).body == raw


def test_a_small_body_cannot_become_a_huge_one() -> None:
    headers, body = deflated(bytes(MAX_BODY_BYTES + 1))

    assert len(body) < MAX_BODY_BYTES / 100
    assert refusal(headers, body)[:2] == (413, "OTSRequestBodyTooLarge")


WRONGLY_COMPRESSED = {
    "a wrong size": deflated(b"raw", 4),
    "truncated": compressed(zlib.compress(b"raw body" * 100)[:-3], 800),
    "garbage": compressed(b"garbage", 7),
    "another kind": (signed(request_compress_type="lz4"), b""),
}


@pytest.mark.parametrize(("headers", "body"), WRONGLY_COMPRESSED.values(), ids=WRONGLY_COMPRESSED)
def test_a_body_that_cannot_be_inflated_is_refused(headers: Headers, body: bytes) -> None:
    assert refusal(headers, body)[:2] == INVALID


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 4_000_000_000_000_000) | st.integers(0, 4_000_000_000).map(lambda second: second * 1_000_000))
def test_answers_always_carry_a_date_with_fraction(micros: int) -> None:
    """The Python SDK refuses a date without one; a whole second must not lose it."""
    now = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=micros)
    text = seal("/ListTable", b"", now, None)["x-ots-date"]

    assert datetime.strptime(text + "+0000", "%Y-%m-%dT%H:%M:%S.%fZ%z") == now


def test_a_signed_answer_covers_every_header() -> None:
    headers = seal("/ListTable", b"answer", NOW, Signer("AKID", "KEY"))
    given_signature = headers.pop("Authorization")

    assert sorted(headers) == ["x-ots-contentmd5", "x-ots-contenttype", "x-ots-date", "x-ots-requestid"]
    assert given_signature == f"OTS AKID:{signature.sign_response('KEY', '/ListTable', headers)}"
    assert headers["x-ots-contentmd5"] == signature.content_md5(b"answer")


def test_an_answer_to_a_stranger_is_not_signed() -> None:
    assert "Authorization" not in seal("/ListTable", b"", NOW, None)


def test_request_ids_are_new_each_time() -> None:
    assert len({seal("/ListTable", b"", NOW, None)["x-ots-requestid"] for _ in range(50)}) == 50


def test_an_error_body_is_the_error_message() -> None:
    error = schema.parse(schema.Error, error_body(ServiceError(404, "OTSObjectNotExist", "gone")))

    assert (error.code, error.message) == ("OTSObjectNotExist", "gone")


@pytest.mark.parametrize("value", ["", " x", "x ", "a\nb", "a\r\nx-ots-injected: 1"])
def test_credentials_that_no_header_can_carry_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="access_key_id"):
        Credentials("inst", value, "secret")


def test_the_secret_is_not_shown() -> None:
    assert "SECRET" not in repr(CREDENTIALS) + repr(Signer("AKID", "SECRET"))
