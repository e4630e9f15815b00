//! Tokens against keys and rules: the RFCs' examples, our own tokens, and invalid tokens.

#![allow(clippy::unwrap_used)]

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ed25519_dalek::Signer as _;
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_policy::Status;
use tollgate_policy::testing::{Answer, Desk, Done, counter, set_now_ms};

use crate::Jwt;
use crate::check::{Check, Passed, presented};
use crate::claims::COPY_BYTES;
use crate::token::{HEADER_BYTES, Refusal, TOKEN_BYTES, Token};

const NOW_MS: u64 = 1_800_000_000_000;
const NOW_S: u64 = NOW_MS / 1000;

/// RFC 7515, A.2: RS256.
const RSA_TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
const RSA_MODULUS: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
/// RFC 7515, A.3: ES256.
const P256_TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
/// RFC 8037, A.4: EdDSA; its payload is a sentence, not claims.
const ED25519_TOKEN: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";

const PEMS: [&str; 3] = [
    "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEHhhTL9R1TALzBB2cdc6zO4P/2BrH\nzk/ogsyxyYvFiW6kbDEcTi/0DdlqNlPm5FRF0y3+SG7O11x6kMahiIHAow==\n-----END PUBLIC KEY-----",
    "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA/RckOFqgx1tk+3jNYC+h2ZH96/drE8WO1wLqyDXp9hg=\n-----END PUBLIC KEY-----",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAofgWCuLjybRlzo0tZWJj\nNiuSfb4p4fAkd/wWJcyQoTbji9k0l8W26mPddxHmfHQp+Vaw+4qPCJrcS2mJPMEz\nP1Pt0Bm4d4QlL+yRT+SFd2lZS+pCgNMsD1W/YpRPEwOWvG6b32690r2jZ47soMZo\n9wGzjb/7OMg0LOL+bSf63kpaSHSXndS5z5rexMdbBYUsLA9e+KXBdQOS+UTo7WTB\nEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6/I5IhlJH7aGhyxX\nFvUK+DWNmoudF8NAco9/h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXp\noQIDAQAB\n-----END PUBLIC KEY-----",
];

/// Keys of these tests; nothing else trusts them.
fn p256_key() -> p256::ecdsa::SigningKey {
    p256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap()
}

fn ed25519_key() -> ed25519_dalek::SigningKey {
    ed25519_dalek::SigningKey::from_bytes(&[9; 32])
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn p256_jwk() -> Value {
    let point = p256_key().verifying_key().to_sec1_point(false);
    let (x, y) = (encoded(point.x().unwrap()), encoded(point.y().unwrap()));
    json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "ec" })
}

fn ed25519_jwk() -> Value {
    let x = encoded(ed25519_key().verifying_key().as_bytes());
    json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": "ed" })
}

fn rsa_jwk() -> Value {
    json!({ "kty": "RSA", "n": RSA_MODULUS, "e": "AQAB", "kid": "rsa" })
}

/// A token with this header and payload, signed with the key for the header's `alg`.
fn signed(header: &str, payload: impl AsRef<[u8]>) -> String {
    let text = format!("{}.{}", encoded(header), encoded(payload));
    let signature = if header.contains("EdDSA") {
        ed25519_key().sign(text.as_bytes()).to_bytes().to_vec()
    } else {
        let signature: p256::ecdsa::Signature = p256_key().sign(text.as_bytes());
        signature.to_bytes().to_vec()
    };
    format!("{text}.{}", encoded(signature))
}

const ES256: &str = r#"{"alg":"ES256","kid":"ec"}"#;

/// Valid claims, with `changes` applied; `null` removes a claim.
fn claims(changes: Value) -> String {
    let mut claims = json!({ "iss": "https://issuer", "aud": "hotel", "sub": "ada", "exp": NOW_S + 60, "scope": "read reserve" });
    for (name, value) in changes.as_object().unwrap() {
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        } else {
            claims[name] = value.clone();
        }
    }
    claims.to_string()
}

/// A valid configuration, with `changes` applied.
fn config(changes: Value) -> String {
    let mut config = json!({
        "keys": [p256_jwk(), ed25519_jwk(), rsa_jwk()], "issuer": "https://issuer", "audience": ["hotel", "hotels"],
        "metadata": ["authorization"], "leeway_s": 0,
    });
    for (name, value) in changes.as_object().unwrap() {
        config[name] = value.clone();
    }
    config.to_string()
}

fn check_of(changes: Value) -> Check {
    check_of_config(&config(changes)).unwrap()
}

fn check_of_config(config: &str) -> Result<Check, String> {
    Jwt::configure(config.as_bytes()).map(|jwt| jwt.check)
}

fn copies(passed: Result<Passed, Refusal>) -> Vec<Option<String>> {
    passed.unwrap().pass.copies
}

#[test]
fn the_examples_of_the_rfcs_are_signed_by_their_keys() {
    let p256 = json!({ "kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0" });
    let ed25519 = json!({ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
    let keys = check_of(json!({ "keys": [p256, ed25519, rsa_jwk()] })).keys;
    for token in [RSA_TOKEN, P256_TOKEN] {
        let verified = Token::parse(token.as_bytes())
            .unwrap()
            .verify(&keys)
            .unwrap();
        assert!(
            verified.bytes().starts_with(b"{\"iss\":\"joe\",\r\n"),
            "{token}"
        );
    }
    let token = Token::parse(ED25519_TOKEN.as_bytes()).unwrap();
    assert_eq!(
        token.verify(&keys).unwrap().bytes(),
        b"Example of Ed25519 signing"
    );
    // The same with the complete check: the first two expired in 2011, and a sentence is not
    // claims.
    let rules = json!({ "keys": [p256, ed25519, rsa_jwk()], "issuer": "joe", "audience": [] });
    let mut check = check_of(rules);
    for token in [RSA_TOKEN, P256_TOKEN] {
        assert!(check.check(token.as_bytes(), 1_300_819_379_999).is_ok());
        assert_eq!(
            check.check(token.as_bytes(), 1_300_819_380_000),
            Err(Refusal::Expired)
        );
    }
    assert_eq!(
        check.check(ED25519_TOKEN.as_bytes(), 0),
        Err(Refusal::Malformed)
    );
}

/// A signature covers every bit before it, and has one form.
#[test]
fn no_flipped_bit_passes() {
    let mut check = check_of(json!({ "remembered": 0 }));
    for header in [ES256, r#"{"alg":"EdDSA","kid":"ed"}"#] {
        let token = signed(header, claims(json!({})));
        assert!(check.check(token.as_bytes(), NOW_MS).is_ok());
        for at in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[at] ^= 1 << (at % 7);
            assert!(check.check(&bytes, NOW_MS).is_err(), "{header}: byte {at}");
        }
    }
    let keys = &check.keys;
    for at in (0..RSA_TOKEN.len()).step_by(7) {
        let mut bytes = RSA_TOKEN.as_bytes().to_vec();
        bytes[at] ^= 1 << (at % 7);
        let passed = Token::parse(&bytes).and_then(|token| token.verify(keys));
        assert!(passed.is_err(), "RS256: byte {at}");
    }
}

#[test]
fn a_key_has_one_algorithm() {
    let mut check = check_of(json!({}));
    let token = signed(ES256, claims(json!({})));
    let rest = &token[token.find('.').unwrap()..];
    for (header, refusal) in [
        (r#"{"alg":"none","kid":"ec"}"#, Refusal::UnknownKey),
        (r#"{"alg":"None"}"#, Refusal::UnknownKey),
        (r#"{"alg":"HS256","kid":"ec"}"#, Refusal::UnknownKey),
        (r#"{"alg":"es256","kid":"ec"}"#, Refusal::UnknownKey),
        (r#"{"alg":"ES384","kid":"ec"}"#, Refusal::UnknownKey),
        (r#"{"alg":"PS256","kid":"rsa"}"#, Refusal::UnknownKey),
        (r#"{"alg":"EdDSA","kid":"ec"}"#, Refusal::UnknownKey),
        (r#"{"alg":"RS256","kid":"ec"}"#, Refusal::UnknownKey),
        (r#"{"alg":"RS256","kid":"rsa"}"#, Refusal::Signature),
        (r#"{"alg":"EdDSA","kid":"ed"}"#, Refusal::Signature),
        (r#"{"alg":"ES256","kid":"other"}"#, Refusal::UnknownKey),
        (r#"{"alg":"ES256","alg":"ES256"}"#, Refusal::Malformed),
        (r#"{"alg":["ES256"]}"#, Refusal::Malformed),
        (r#"{"kid":"ec"}"#, Refusal::Malformed),
        (r#"{"alg":"ES256","kid":7}"#, Refusal::Malformed),
        (
            r#"{"alg":"ES256","crit":["exp"],"exp":1}"#,
            Refusal::Malformed,
        ),
        (r#"{"alg":"ES256","crit":null}"#, Refusal::Malformed),
        (r#"{"alg":"ES256"} "#, Refusal::Signature),
    ] {
        let forged = format!("{}{rest}", encoded(header));
        assert_eq!(
            check.check(forged.as_bytes(), NOW_MS),
            Err(refusal),
            "{header}"
        );
    }
    // Without any signature.
    for header in [r#"{"alg":"none"}"#, ES256] {
        let unsigned = format!("{}.{}.", encoded(header), encoded(claims(json!({}))));
        assert!(
            check.check(unsigned.as_bytes(), NOW_MS).is_err(),
            "{header}"
        );
    }
}

/// The oldest attack: an HMAC whose secret is the text of the public key.
#[test]
fn a_public_key_is_nobodys_secret() {
    let config = config(json!({ "keys": [{ "kty": "oct", "k": "c2VjcmV0", "alg": "HS256" }] }));
    let refused = check_of_config(&config).unwrap_err();
    assert_eq!(
        refused,
        "key 1: it is a shared secret; only public keys are allowed"
    );
}

#[test]
fn a_token_finds_its_key() {
    let without_id = |mut jwk: Value| {
        jwk.as_object_mut().unwrap().remove("kid");
        jwk
    };
    let mut other = p256_jwk();
    other["kid"] = json!("other");
    let header = |id: Option<&str>| match id {
        Some(id) => json!({ "alg": "ES256", "kid": id }).to_string(),
        None => json!({ "alg": "ES256" }).to_string(),
    };
    for (keys, id, passes) in [
        (vec![p256_jwk()], Some("ec"), true),
        (vec![p256_jwk()], None, true),
        (vec![p256_jwk()], Some("old"), false),
        (vec![without_id(p256_jwk())], Some("any"), true),
        (vec![without_id(p256_jwk())], None, true),
        // With two keys, a token must name one.
        (vec![p256_jwk(), other.clone()], None, false),
        (vec![p256_jwk(), other], Some("other"), true),
        (vec![ed25519_jwk(), p256_jwk()], None, true),
        (vec![ed25519_jwk()], None, false),
    ] {
        let mut check = check_of(json!({ "keys": keys }));
        let token = signed(&header(id), claims(json!({})));
        assert_eq!(
            check.check(token.as_bytes(), NOW_MS).is_ok(),
            passes,
            "{keys:?} {id:?}"
        );
    }
}

#[test]
fn claims_are_what_the_rules_ask_for() {
    let mut check = check_of(json!({
        "scopes": ["reserve"], "required_claims": { "sub": [], "tenant": ["acme", "7", "true"] }, "remembered": 0,
    }));
    for (changes, expected) in [
        (json!({}), Err(Refusal::Claims)),
        (json!({ "tenant": "acme" }), Ok(())),
        (json!({ "tenant": 7 }), Ok(())),
        (json!({ "tenant": true }), Ok(())),
        (json!({ "tenant": ["x", "acme"] }), Ok(())),
        (json!({ "tenant": "acme2" }), Err(Refusal::Claims)),
        (
            json!({ "tenant": { "acme": "acme" } }),
            Err(Refusal::Claims),
        ),
        (
            json!({ "tenant": "acme", "sub": null }),
            Err(Refusal::Claims),
        ),
        (
            json!({ "tenant": "acme", "iss": null }),
            Err(Refusal::Claims),
        ),
        (
            json!({ "tenant": "acme", "iss": "https://issuer/" }),
            Err(Refusal::Claims),
        ),
        (
            json!({ "tenant": "acme", "iss": ["https://issuer"] }),
            Err(Refusal::Claims),
        ),
        (
            json!({ "tenant": "acme", "aud": null }),
            Err(Refusal::Claims),
        ),
        (
            json!({ "tenant": "acme", "aud": "Hotel" }),
            Err(Refusal::Claims),
        ),
        (
            json!({ "tenant": "acme", "aud": ["bank", "hotels"] }),
            Ok(()),
        ),
        (
            json!({ "tenant": "acme", "aud": ["hotel", 7] }),
            Err(Refusal::Claims),
        ),
        (json!({ "tenant": "acme", "aud": [] }), Err(Refusal::Claims)),
        (
            json!({ "tenant": "acme", "exp": null }),
            Err(Refusal::Claims),
        ),
        (
            json!({ "tenant": "acme", "exp": (NOW_S + 60).to_string() }),
            Err(Refusal::Malformed),
        ),
        (
            json!({ "tenant": "acme", "nbf": "now" }),
            Err(Refusal::Malformed),
        ),
        (
            json!({ "tenant": "acme", "scope": null }),
            Err(Refusal::Scope),
        ),
        (
            json!({ "tenant": "acme", "scope": "reserved" }),
            Err(Refusal::Scope),
        ),
        (
            json!({ "tenant": "acme", "scope": "read,reserve" }),
            Err(Refusal::Scope),
        ),
        (
            json!({ "tenant": "acme", "scope": ["read", "reserve"] }),
            Ok(()),
        ),
        (
            json!({ "tenant": "acme", "scope": ["read reserve"] }),
            Err(Refusal::Scope),
        ),
    ] {
        let token = signed(ES256, claims(changes.clone()));
        let passed = check.check(token.as_bytes(), NOW_MS).map(|_| ());
        assert_eq!(passed, expected, "{changes}");
    }
}

/// RFC 7519, 4.1.3: a token for another audience is refused.
#[test]
fn without_an_audience_of_ones_own_only_tokens_for_nobody_in_particular_pass() {
    let mut check = check_of(json!({ "audience": [] }));
    let for_hotel = signed(ES256, claims(json!({})));
    assert_eq!(
        check.check(for_hotel.as_bytes(), NOW_MS),
        Err(Refusal::Claims)
    );
    let for_all = signed(ES256, claims(json!({ "aud": null })));
    assert!(check.check(for_all.as_bytes(), NOW_MS).is_ok());
}

/// Exact to 1 ms, with and without leeway, cached or not.
#[test]
fn a_token_is_valid_from_its_first_moment_to_before_its_last() {
    for (leeway_s, remembered) in [(0, 0), (0, 8), (5, 0), (5, 8)] {
        let mut check = check_of(json!({ "leeway_s": leeway_s, "remembered": remembered }));
        let token = signed(ES256, claims(json!({ "nbf": 1000.5, "exp": 2000.25 })));
        let (begins, ends) = (1_000_500 - leeway_s * 1000, 2_000_250 + leeway_s * 1000);
        for (now_ms, expected) in [
            (begins - 1, Err(Refusal::TooEarly)),
            (begins, Ok(())),
            (ends - 1, Ok(())),
            (ends, Err(Refusal::Expired)),
            (u64::MAX, Err(Refusal::Expired)),
            // Clocks can go back.
            (begins, Ok(())),
        ] {
            let passed = check.check(token.as_bytes(), now_ms).map(|_| ());
            assert_eq!(passed, expected, "{now_ms} leeway {leeway_s}");
        }
    }
    let mut check = check_of(json!({}));
    for (exp, passes) in [
        ("-1", false),
        ("0", false),
        ("1e300", true),
        ("18446744073709551615", true),
        ("1e999", false),
    ] {
        let payload = claims(json!({})).replace(&(NOW_S + 60).to_string(), exp);
        let token = signed(ES256, payload);
        assert_eq!(
            check.check(token.as_bytes(), NOW_MS).is_ok(),
            passes,
            "exp {exp}"
        );
    }
}

#[test]
fn a_claim_that_matters_comes_once() {
    let mut check = check_of(json!({ "required_claims": { "sub": [] } }));
    let claims = claims(json!({}));
    let with = |more: &str| signed(ES256, format!("{}{more}}}", &claims[..claims.len() - 1]));
    for (more, passes) in [
        ("", true),
        (r#","sub":"eve""#, false),
        (r#","iss":"https://issuer""#, false),
        (r#","s\u0075b":"eve""#, false),
        (r#","other":1,"other":2"#, true),
    ] {
        let passed = check.check(with(more).as_bytes(), NOW_MS).is_ok();
        assert_eq!(passed, passes, "{more}");
    }
}

/// Deeply nested arrays and objects: skipped at any depth; and the same in a relevant claim.
#[test]
fn json_of_any_depth_is_read() {
    let mut check = check_of(
        json!({ "required_claims": { "sub": [] }, "copy": { "deep": "x-deep" }, "metadata_changes": ["x-deep"] }),
    );
    for depth in [1, 100, 127, 2000] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), (r#"[{"a":"#, "}]")] {
            let opened = open.repeat(depth);
            let room = TOKEN_BYTES * 3 / 4 - 500;
            if opened.len() * 2 > room {
                continue;
            }
            let deep = format!("{opened}1{}", close.repeat(depth));
            for (name, expected) in [
                ("other", Ok(())),
                ("sub", Ok(())),
                ("deep", Err(Refusal::Claims)),
            ] {
                let base = claims(json!({ "sub": null }));
                let sub = if name == "sub" { "" } else { r#","sub":"ada""# };
                let payload = format!(r#"{}{sub},"{name}":{deep}}}"#, &base[..base.len() - 1]);
                let token = signed(ES256, payload);
                let passed = check.check(token.as_bytes(), NOW_MS).map(|_| ());
                assert_eq!(passed, expected, "{name}, {depth} times {open}");
            }
        }
    }
}

#[test]
fn what_is_no_token_is_refused() {
    let mut check = check_of(json!({}));
    let good = signed(ES256, claims(json!({})));
    let parts: Vec<&str> = good.split('.').collect();
    for text in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        "...".to_owned(),
        format!("{}.{}", parts[0], parts[1]),
        format!("{good}."),
        format!("{good}.{}", parts[2]),
        format!(" {good}"),
        format!("{good} "),
        format!("{good}\n"),
        format!("{good}="),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}.{}", parts[0], parts[1], &parts[2][..40]),
        format!("{}.{}.{}AA", parts[0], parts[1], parts[2]),
        format!("{}..{}", parts[0], parts[2]),
        format!(".{}.{}", parts[1], parts[2]),
        good.replace('.', ","),
        good.to_uppercase(),
        json!({ "protected": parts[0], "payload": parts[1], "signature": parts[2] }).to_string(),
    ] {
        assert!(check.check(text.as_bytes(), NOW_MS).is_err(), "{text}");
    }
    for payload in [
        "",
        "7",
        "null",
        "[]",
        "{",
        "{}x",
        "\"{}\"",
        "{\"iss\":\"\u{0}\"}",
        "{'iss':1}",
    ] {
        let token = signed(ES256, payload);
        assert_eq!(
            check.check(token.as_bytes(), NOW_MS),
            Err(Refusal::Malformed),
            "{payload}"
        );
    }
    let not_utf8 = signed(ES256, b"{\"iss\":\"\xff\"}");
    assert_eq!(
        check.check(not_utf8.as_bytes(), NOW_MS),
        Err(Refusal::Malformed)
    );
    let header = encoded(b"{\"alg\":\"ES256\",\"kid\":\"\xff\"}");
    let token = format!("{header}.{}.{}", parts[1], parts[2]);
    assert_eq!(
        check.check(token.as_bytes(), NOW_MS),
        Err(Refusal::Malformed)
    );
}

#[test]
fn a_token_has_bounds() {
    let mut check = check_of(json!({}));
    let token_of = |len: usize| {
        let bare = signed(ES256, claims(json!({ "fill": "" })));
        let fill = "x".repeat((len - bare.len()) / 4 * 3);
        signed(ES256, claims(json!({ "fill": fill })))
    };
    let longest = token_of(TOKEN_BYTES);
    assert!(longest.len() > TOKEN_BYTES - 8 && longest.len() <= TOKEN_BYTES);
    assert!(check.check(longest.as_bytes(), NOW_MS).is_ok());
    let longer = token_of(TOKEN_BYTES + 8);
    assert_eq!(
        check.check(longer.as_bytes(), NOW_MS),
        Err(Refusal::Malformed)
    );
    let header_of = |len: usize| {
        let bare = r#"{"alg":"ES256","kid":"ec","x5c":""}"#;
        bare.replace(
            r#""}"#,
            &format!(r#"{}"}}"#, "x".repeat(len / 4 * 3 - bare.len())),
        )
    };
    let header = header_of(HEADER_BYTES);
    assert_eq!(encoded(&header).len(), HEADER_BYTES);
    assert!(
        check
            .check(signed(&header, claims(json!({}))).as_bytes(), NOW_MS)
            .is_ok()
    );
    let header = header_of(HEADER_BYTES + 4);
    let token = signed(&header, claims(json!({})));
    assert_eq!(
        check.check(token.as_bytes(), NOW_MS),
        Err(Refusal::Malformed)
    );
}

#[test]
fn claims_are_copied_as_one_line_or_refused() {
    let keys = ["a", "b", "c", "d", "e"];
    let copy: serde_json::Map<_, _> = keys
        .iter()
        .map(|key| ((*key).to_owned(), json!(format!("x-{key}"))))
        .collect();
    let changes: Vec<_> = keys.iter().map(|key| format!("x-{key}")).collect();
    let mut check = check_of(json!({ "copy": copy, "metadata_changes": changes }));
    let token = signed(
        ES256,
        claims(json!({ "a": "Ada Lovelace", "b": 7, "c": true, "d": ["x", "y"] })),
    );
    let expected = [
        Some("Ada Lovelace"),
        Some("7"),
        Some("true"),
        Some("x y"),
        None,
    ];
    assert_eq!(
        copies(check.check(token.as_bytes(), NOW_MS)),
        expected.map(|text| text.map(str::to_owned))
    );
    for a in [
        json!("Zoë"),
        json!("a\nx-admin: yes"),
        json!("\u{7f}"),
        json!(["a b", "c"]),
        json!({ "a": 1 }),
        json!([1]),
        json!("x".repeat(COPY_BYTES + 1)),
    ] {
        let token = signed(ES256, claims(json!({ "a": a })));
        assert_eq!(
            check.check(token.as_bytes(), NOW_MS),
            Err(Refusal::Claims),
            "{a}"
        );
    }
    let token = signed(ES256, claims(json!({ "a": "x".repeat(COPY_BYTES) })));
    assert!(check.check(token.as_bytes(), NOW_MS).is_ok());
}

#[test]
fn a_token_is_remembered_until_another_takes_its_place() {
    let mut check = check_of(json!({ "remembered": 1 }));
    let [ada, bob] = ["ada", "bob"].map(|sub| signed(ES256, claims(json!({ "sub": sub }))));
    let mut remembered = |token: &str| check.check(token.as_bytes(), NOW_MS).unwrap().remembered;
    let order = [&ada, &ada, &bob, &bob, &ada].map(|token| remembered(token));
    assert_eq!(order, [false, true, false, true, false]);
    // A refused token evicts nothing, and a token that resembles a cached one isn't accepted.
    let mut forged = ada.clone().into_bytes();
    forged[ES256.len() + 20] ^= 1;
    assert!(check.check(&forged, NOW_MS).is_err());
    assert!(
        check
            .check(&ada.as_bytes()[..ada.len() - 1], NOW_MS)
            .is_err()
    );
    assert!(check.check(ada.as_bytes(), NOW_MS).unwrap().remembered);
    let mut none = check_of(json!({ "remembered": 0 }));
    for _ in 0..2 {
        assert!(!none.check(ada.as_bytes(), NOW_MS).unwrap().remembered);
    }
}

#[test]
fn a_token_stands_behind_its_scheme() {
    for (value, bare, expected) in [
        ("Bearer a.b.c", false, Ok("a.b.c")),
        ("bearer   a.b.c", false, Ok("a.b.c")),
        ("BEARER a.b.c", true, Ok("a.b.c")),
        ("a.b.c", true, Ok("a.b.c")),
        ("a.b.c", false, Err(Refusal::Missing)),
        ("Basic YTpi", false, Err(Refusal::Missing)),
        ("Bearer", false, Err(Refusal::Missing)),
        ("", false, Err(Refusal::Missing)),
        ("Bearera.b.c", false, Err(Refusal::Missing)),
        (
            "Bearer a.b.c, Bearer d.e.f",
            false,
            Ok("a.b.c, Bearer d.e.f"),
        ),
    ] {
        assert_eq!(
            presented(value.as_bytes(), bare),
            expected.map(str::as_bytes),
            "{value}"
        );
    }
}

const CHECKED: u32 = 0;
const FROM_MEMORY: u32 = 1;

fn desk(changes: Value) -> Desk<Jwt> {
    let list = |name: &str| -> Vec<String> {
        serde_json::from_value(changes[name].clone()).unwrap_or_default()
    };
    let (mut keys, changed) = (list("metadata"), list("metadata_changes"));
    if keys.is_empty() {
        keys.push("authorization".to_owned());
    }
    let names = |list: &[String]| -> Vec<&'static str> {
        list.iter().map(|name| &*name.clone().leak()).collect()
    };
    let desk = Desk::<Jwt>::new(&config(changes)).unwrap();
    set_now_ms(NOW_MS);
    desk.with_keys(&names(&keys), &names(&changed))
}

fn ask(desk: &mut Desk<Jwt>, metadata: &[(&str, &str)]) -> Answer {
    let metadata: Vec<(&str, &[u8])> = metadata
        .iter()
        .map(|(key, value)| (*key, value.as_bytes()))
        .collect();
    desk.request_with("any.Service/Method", &[], &metadata)
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

/// The caller learns how to fix the error, but not what was expected.
#[test]
fn each_refusal_has_its_status_and_counter() {
    let good = signed(ES256, claims(json!({ "scope": "read" })));
    let forged = format!("{}A{}", &good[..good.len() - 2], &good[good.len() - 1..]);
    let of = |changes: Value| signed(ES256, claims(changes));
    let unacceptable = Answer::deny(Status::UNAUTHENTICATED, "the token isn't accepted");
    for (number, token, expected) in [
        (0, good, Answer::Allow),
        (3, "a.b".to_owned(), unacceptable.clone()),
        (
            4,
            signed(r#"{"alg":"EdDSA","kid":"ec"}"#, claims(json!({}))),
            unacceptable.clone(),
        ),
        (5, forged, unacceptable.clone()),
        (
            6,
            of(json!({ "exp": NOW_S - 1 })),
            Answer::deny(Status::UNAUTHENTICATED, "the token has expired"),
        ),
        (
            7,
            of(json!({ "nbf": NOW_S + 1 })),
            Answer::deny(Status::UNAUTHENTICATED, "the token isn't valid yet"),
        ),
        (8, of(json!({ "aud": "bank" })), unacceptable),
        (
            9,
            of(json!({ "scope": "write" })),
            Answer::deny(
                Status::PERMISSION_DENIED,
                "the token doesn't allow this call",
            ),
        ),
    ] {
        let mut desk = desk(json!({ "scopes": ["read"] }));
        assert_eq!(
            ask(&mut desk, &[("authorization", &bearer(&token))]),
            expected,
            "counter {number}"
        );
        let counted: Vec<u32> = (0..10).filter(|id| counter(*id) == 1).collect();
        assert_eq!(counted, [number]);
    }
    let mut desk = desk(json!({}));
    let missing = Answer::deny(Status::UNAUTHENTICATED, "a token is needed");
    assert_eq!(ask(&mut desk, &[]), missing);
    assert_eq!(ask(&mut desk, &[("authorization", "Basic YTpi")]), missing);
    assert_eq!(counter(2), 2);
}

#[test]
fn two_tokens_are_none() {
    let mut desk = desk(json!({}));
    let value = bearer(&signed(ES256, claims(json!({}))));
    let both = [("authorization", &*value), ("authorization", &*value)];
    assert_eq!(
        ask(&mut desk, &both),
        Answer::deny(Status::UNAUTHENTICATED, "the token isn't accepted")
    );
}

#[test]
fn copied_claims_replace_whatever_a_caller_claims() {
    let mut desk = desk(json!({
        "metadata": ["x-token"], "metadata_changes": ["x-mail", "x-sub", "x-token"],
        "copy": { "sub": "x-sub", "email": "x-mail" }, "remove_token": true,
    }));
    let token = signed(ES256, claims(json!({})));
    let done = Done {
        metadata: vec![
            ("x-mail".to_owned(), None),
            ("x-sub".to_owned(), Some(b"ada".to_vec())),
            ("x-token".to_owned(), None),
        ],
        ..Done::default()
    };
    for value in [&token, &bearer(&token)] {
        let metadata = [
            ("x-token", &**value),
            ("x-sub", "root"),
            ("x-mail", "root@example.com"),
        ];
        assert_eq!(ask(&mut desk, &metadata), Answer::Effects(done.clone()));
    }
    assert_eq!((counter(CHECKED), counter(FROM_MEMORY)), (1, 1));
}

#[test]
fn configurations_are_refused_with_a_sentence() {
    let key = |changes: Value| {
        let mut key = p256_jwk();
        for (name, value) in changes.as_object().unwrap() {
            key[name] = value.clone();
        }
        json!({ "keys": [key] })
    };
    let pem = |pem: &str| json!({ "keys": [{ "pem": pem }] });
    let many = |count: usize| json!(vec!["x"; count]);
    for (changes, expected) in [
        (
            json!({ "keys": [] }),
            "there are 0 keys; 1 to 16 are allowed",
        ),
        (
            json!({ "keys": vec![p256_jwk(); 17] }),
            "there are 17 keys; 1 to 16 are allowed",
        ),
        (
            json!({ "keys": [p256_jwk(), p256_jwk()] }),
            "two keys for ES256 have the same kid \"ec\"",
        ),
        (
            json!({ "keys": [{}] }),
            "key 1: it has neither `kty` (a JWK) nor `pem`",
        ),
        (
            key(json!({ "pem": "" })),
            "key 1 (\"ec\"): it has both `pem` and `kty`; give only one",
        ),
        (
            key(json!({ "d": "AA" })),
            "key 1 (\"ec\"): it has its private part, `d`; remove `d`, which must stay secret",
        ),
        (
            key(json!({ "use": "enc" })),
            "key 1 (\"ec\"): its `use` isn't \"sig\"; remove this key",
        ),
        (
            key(json!({ "alg": "RS256" })),
            "key 1 (\"ec\"): its `alg` is \"RS256\"; a key of this type is for ES256",
        ),
        (
            key(json!({ "crv": "P-384" })),
            "key 1 (\"ec\"): its curve is \"P-384\"; P-256 and Ed25519 are supported",
        ),
        (
            key(json!({ "crv": null })),
            "key 1 (\"ec\"): it has no `crv`",
        ),
        (
            key(json!({ "kty": "AKP" })),
            "key 1 (\"ec\"): its `kty` is \"AKP\"; EC, OKP and RSA are supported",
        ),
        (
            key(json!({ "x": "AA" })),
            "key 1 (\"ec\"): its `x` has 1 bytes instead of 32",
        ),
        (
            key(json!({ "x": "A=" })),
            "key 1 (\"ec\"): its `x` isn't base64url: ",
        ),
        (key(json!({ "x": null })), "key 1 (\"ec\"): it has no `x`"),
        (
            key(json!({ "x": encoded([0; 32]) })),
            "key 1 (\"ec\"): it is not a point on the curve P-256",
        ),
        (
            key(json!({ "kty": "OKP", "crv": "Ed25519", "x": encoded([0; 32]) })),
            "key 1 (\"ec\"): it is not a valid Ed25519 key",
        ),
        (
            key(json!({ "kty": "RSA", "n": encoded([255; 128]), "e": "AQAB" })),
            "key 1 (\"ec\"): its modulus has 1024 bits; 2048 to 4096 are allowed",
        ),
        (
            key(json!({ "kty": "RSA", "n": encoded([255; 513]), "e": "AQAB" })),
            "key 1 (\"ec\"): its modulus has 4104 bits; 2048 to 4096 are allowed",
        ),
        (
            key(json!({ "kty": "RSA", "n": encoded([254; 256]), "e": "AQAB" })),
            "key 1 (\"ec\"): its modulus is even",
        ),
        (
            key(json!({ "kty": "RSA", "n": RSA_MODULUS, "e": "AQ" })),
            "key 1 (\"ec\"): its exponent isn't 3, 17 or 65537",
        ),
        (
            pem("-----BEGIN PRIVATE KEY-----"),
            "key 1: its PEM is a private key; `openssl pkey -pubout` extracts the public key",
        ),
        (
            pem("-----BEGIN CERTIFICATE-----"),
            "key 1: its PEM is a certificate; `openssl x509 -pubkey -noout` extracts its key",
        ),
        (
            pem("AAAA"),
            "key 1: its PEM isn't exactly one BEGIN PUBLIC KEY block",
        ),
        (
            pem("-----BEGIN PUBLIC KEY-----\nA\n-----END PUBLIC KEY-----"),
            "key 1: its PEM isn't base64: ",
        ),
        (
            pem("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"),
            "key 1: its PEM has no P-256, Ed25519 or RSA key",
        ),
        (
            json!({ "metadata": [] }),
            "metadata lists 0 keys; list the 1 key in which callers send their token",
        ),
        (
            json!({ "metadata": ["a", "b"] }),
            "metadata lists 2 keys; list the 1 key",
        ),
        (
            json!({ "copy": { "sub": "x-sub" } }),
            "\"x-sub\" is written, but metadata_changes doesn't list it",
        ),
        (
            json!({ "remove_token": true }),
            "\"authorization\" is written, but metadata_changes doesn't list it",
        ),
        (
            json!({ "copy": { "sub": "x", "name": "x" }, "metadata_changes": ["x"] }),
            "\"x\" would be written twice",
        ),
        (
            json!({ "metadata_changes": ["x"] }),
            "metadata_changes lists \"x\", which neither copy nor remove_token writes",
        ),
        (
            json!({ "leeway_s": 301 }),
            "leeway_s is 301; 0 to 300 are allowed",
        ),
        (
            json!({ "remembered": 257 }),
            "remembered is 257; 0 to 256 are allowed",
        ),
        (
            json!({ "audience": many(17) }),
            "audience has 17 entries; 16 are allowed",
        ),
        (
            json!({ "scopes": many(17) }),
            "scopes has 17 entries; 16 are allowed",
        ),
        (json!({ "isuer": "x" }), "unknown field `isuer`"),
    ] {
        let refused = check_of_config(&config(changes.clone())).unwrap_err();
        assert!(refused.starts_with(expected), "{changes}: {refused}");
    }
    let without_id = |mut key: Value| {
        key["kid"] = Value::Null;
        key
    };
    let twice = json!({ "keys": [without_id(p256_jwk()), without_id(p256_jwk())] });
    let refused = check_of_config(&config(twice)).unwrap_err();
    assert_eq!(refused, "two keys for ES256 have no kid; give each a kid");
}

/// The output of `openssl pkey -pubout` for the keys above.
#[test]
fn keys_are_read_from_pem_too() {
    let keys = PEMS.map(|pem| json!({ "pem": pem }));
    let mut check = check_of(json!({ "keys": keys, "issuer": "joe", "audience": [] }));
    assert!(check.check(RSA_TOKEN.as_bytes(), 0).is_ok());
    for header in [r#"{"alg":"ES256"}"#, r#"{"alg":"EdDSA"}"#] {
        let token = signed(header, claims(json!({ "iss": "joe", "aud": null })));
        assert!(check.check(token.as_bytes(), NOW_MS).is_ok(), "{header}");
    }
    for pem in PEMS {
        for cut in ["B", "Q", "A", "E"] {
            // DER with extra or missing bytes is refused or another key, and doesn't panic.
            let changed = pem.replacen(cut, "z", 1);
            let _ = check_of_config(&config(json!({ "keys": [{ "pem": changed }] })));
        }
    }
}

proptest! {
    /// No bytes from a caller end the policy: they are refused.
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut check = check_of(json!({}));
        prop_assert!(check.check(&bytes, NOW_MS).is_err());
    }

    /// No text in the form of a token ends it either, signed or not.
    #[test]
    fn no_shape_panics(header in "\\PC{0,40}", payload in "\\PC{0,80}", signature in proptest::collection::vec(any::<u8>(), 0..80)) {
        let mut check = check_of(json!({}));
        let forged = format!("{}.{}.{}", encoded(&header), encoded(&payload), encoded(&signature));
        prop_assert!(check.check(forged.as_bytes(), NOW_MS).is_err());
        let forged = format!("{}.{}.{}", encoded(ES256), encoded(&payload), encoded(&signature));
        prop_assert!(check.check(forged.as_bytes(), NOW_MS).is_err());
        prop_assert!(check.check(signed(ES256, payload).as_bytes(), NOW_MS).is_err());
    }
}
