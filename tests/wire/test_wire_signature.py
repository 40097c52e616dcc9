from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tablestore.auth import RequestContext, SignV2, SignV4
from tablestore.credentials import StaticCredentialsProvider

from streamclient.wire import signature

EMPTY_MD5 = "1B2M2Y8AsgTpgAmY7PhCfg=="
V4_KEY = "IZDMB83uzREXmisVFfurjqqp4KESaOxyAYsAkSNIKDE="
REQUEST = {
    "x-ots-date": "2024-01-02T03:04:05.000Z",
    "x-ots-apiversion": "2015-12-31",
    "x-ots-accesskeyid": "AKID",
    "x-ots-instancename": "inst",
    "x-ots-contentmd5": EMPTY_MD5,
}
V4_REQUEST = {**REQUEST, "x-ots-signdate": "20240102", "x-ots-signregion": "cn-hangzhou"}
RESPONSE = {
    "x-ots-contentmd5": EMPTY_MD5,
    "x-ots-contenttype": "protocol buffer",
    "x-ots-date": "2024-01-02T03:04:05.678000Z",
    "x-ots-requestid": "rid-1",
}


def test_md5_of_nothing() -> None:
    assert signature.content_md5(b"") == EMPTY_MD5


def test_request_vectors() -> None:
    assert signature.sign_request_v2("SECRET", "/ListTable", REQUEST) == "as2KXjzmbBEk1ItcdX8zMCE0630="
    assert signature.derive_v4_key("SECRET", "20240102", "cn-hangzhou") == V4_KEY
    expected = "mis0gAm8HePpf/DO80bbMLU/c6gwl74UCe50FcyjTHk="
    assert signature.sign_request_v4(V4_KEY, "/ListTable", V4_REQUEST) == expected


def test_response_vectors() -> None:
    """SHA-1 even for V4, whose key is the derived one as text."""
    assert signature.sign_response("SECRET", "/ListTable", RESPONSE) == "rQOLC30x9hX+koPZAVzZ2iZn37o="
    assert signature.sign_response(V4_KEY, "/ListTable", RESPONSE) == "BXoeDKgMD0gHhu+Y7VxqDpLNTAo="
    headers = {"x-ots-contentmd5": "md5", "x-ots-contenttype": "json"}
    assert signature.sign_response("sk", "/action", headers) == "yxS9NtV7YZ+VtKXGkyeLOlYsH5o="


def test_what_is_signed() -> None:
    """Every x-ots- header but the signatures, in lower case, trimmed, by name; nothing else."""
    headers = {
        "X-Ots-Date": " now ",
        "Content-Length": "3",
        "x-ots-zz-custom": "z",
        "x-ots-signature": "s2",
        "X-Ots-SignatureV4": "s4",
        "x-ots-apiversion": "1",
    }
    assert signature.request_string("/GetRow", headers) == (
        "/GetRow\nPOST\n\nx-ots-apiversion:1\nx-ots-date:now\nx-ots-zz-custom:z\n"
    )
    assert signature.response_string("/GetRow", {"x-ots-date": "now", "date": "x"}) == "x-ots-date:now\n/GetRow"


def test_headers_sort_by_name_alone() -> None:
    """Sorting whole lines would put ``x-ots-date-2`` first, as ``-`` sorts below ``:``."""
    text = signature.request_string("/a", {"x-ots-date-2": "b", "x-ots-date": "a"})
    assert text.endswith("x-ots-date:a\nx-ots-date-2:b\n")


def test_authorization_header() -> None:
    assert signature.authorization("AKID", "sig=") == "OTS AKID:sig="


def test_comparison_takes_any_text() -> None:
    assert signature.signatures_equal("abc=", "abc=")
    assert not signature.signatures_equal("abc=", "abd=")
    assert not signature.signatures_equal("\udce9", "abc=")


header_names = st.from_regex(r"x-ots-[a-z]{1,12}", fullmatch=True)
header_values = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(header_names, header_values, max_size=5), st.sampled_from([None, "cn-hangzhou"]))
def test_the_sdk_signs_alike(extra: dict[str, str], region: str | None) -> None:
    signer: Any = SignV2("utf8") if region is None else SignV4("utf8", region=region, sign_date="20240102")
    credentials = StaticCredentialsProvider("AKID", "SECRET").get_credentials()
    context = RequestContext(credentials)
    headers = {**extra, **REQUEST}
    signed = dict(headers)
    signer.make_request_signature_and_add_headers("/ListTable", signed, context)

    if region is None:
        assert signed["x-ots-signature"] == signature.sign_request_v2("SECRET", "/ListTable", signed)
        key = "SECRET"
    else:
        key = signature.derive_v4_key("SECRET", signed["x-ots-signdate"], region)
        assert signed["x-ots-signaturev4"] == signature.sign_request_v4(key, "/ListTable", signed)
    answered = signer.make_response_signature("/ListTable", RESPONSE, signer.get_signing_key(context))
    assert answered == signature.sign_response(key, "/ListTable", RESPONSE)


@given(st.text(max_size=200), st.text(max_size=300))
def test_signatures_are_those_of_the_standard_library_for_any_key(key: str, path: str) -> None:
    """Keys beyond the block of the hash, 64 bytes, are hashed first; the longest here has several times as many."""
    request = signature.request_string(path, {}) + "ots"

    response = signature.sign_response(key, path, {})
    assert b64decode(response) == hmac.new(key.encode(), path.encode(), "sha1").digest()
    signed = signature.sign_request_v4(key, path, {})
    assert b64decode(signed) == hmac.new(key.encode(), request.encode(), "sha256").digest()


def test_digests_of_one_thread_do_not_meet_those_of_another() -> None:
    """What is kept between calls is copied before it is used."""
    bodies = [bytes([number]) * 5_000 for number in range(200)]
    with ThreadPoolExecutor(8) as threads:
        digests = list(threads.map(signature.content_md5, bodies))
        signatures = list(threads.map(lambda body: signature.sign_response("key", body.decode("latin-1"), {}), bodies))

    assert digests == [b64encode(hashlib.md5(body).digest()).decode() for body in bodies]
    texts = [body.decode("latin-1").encode() for body in bodies]
    assert signatures == [b64encode(hmac.new(b"key", text, "sha1").digest()).decode() for text in texts]
