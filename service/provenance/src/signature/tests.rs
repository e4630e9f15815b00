#![allow(clippy::unwrap_used)]

use base64::prelude::{BASE64_STANDARD, Engine as _};
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{DerSignature, SigningKey};
use p256::pkcs8::{EncodePublicKey as _, LineEnding};
use proptest::prelude::*;
use wasmsign2::{KeyPair, Module, SecretKey};

use super::*;

/// A module with a custom section, so that there is content to sign.
const MODULE: &[u8] = b"\0asm\x01\0\0\0\x00\x09\x04nameabcd";

fn cosign_key(seed: u8) -> SigningKey {
    SigningKey::from_slice(&[seed; 32]).unwrap()
}

fn cosign(key: &SigningKey, signed: &[u8]) -> Vec<u8> {
    let signature: DerSignature = key.sign(signed);
    BASE64_STANDARD.encode(signature.as_bytes()).into_bytes()
}

fn cosign_pem(key: &SigningKey) -> String {
    let key = VerifyingKey::from(key);
    key.to_public_key_pem(LineEnding::LF).unwrap()
}

fn embed(key: &SecretKey, module: &[u8]) -> Vec<u8> {
    let module = Module::deserialize(&mut Cursor::new(module)).unwrap();
    let mut signed = Vec::new();
    let module = key.sign(module, None).unwrap();
    module.serialize(&mut signed).unwrap();
    signed
}

/// One key of each kind is trusted.
struct Scene {
    ed25519: KeyPair,
    trusted: TrustedKeys,
}

impl Scene {
    fn new() -> Scene {
        let ed25519 = KeyPair::generate();
        let mut trusted = TrustedKeys::default();
        trusted.add("release", &ed25519.pk.to_bytes()).unwrap();
        trusted
            .add("cosign.pub", cosign_pem(&cosign_key(1)).as_bytes())
            .unwrap();
        Scene { ed25519, trusted }
    }

    #[track_caller]
    fn check(&self, module: &[u8], proof: &Proof<'_>, expected: Result<&str, &str>) {
        let verified = self.trusted.verify(module, proof);
        match (verified, expected) {
            (Ok(name), Ok(expected)) => assert_eq!(name, expected),
            (Err(error), Err(part)) => {
                let error = error.to_string();
                assert!(error.contains(part), "{error:?} lacks {part:?}");
            }
            (verified, expected) => panic!("{verified:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn an_embedded_signature_counts_if_a_trusted_key_made_it() {
    let scene = Scene::new();
    let signed = embed(&scene.ed25519.sk, MODULE);
    scene.check(&signed, &Proof::Embedded, Ok("release"));
    scene.check(
        MODULE,
        &Proof::Embedded,
        Err("isn't signed; this daemon takes modules signed with release, cosign.pub"),
    );
    let stranger = embed(&KeyPair::generate().sk, MODULE);
    scene.check(
        &stranger,
        &Proof::Embedded,
        Err("none of the keys that this daemon trusts (release, cosign.pub)"),
    );
    for at in 0..signed.len() {
        let mut edited = signed.clone();
        edited[at] ^= 1;
        let verified = scene.trusted.verify(&edited, &Proof::Embedded);
        // The first eight bytes are the format's magic, which isn't signed: no engine loads an
        // edited one.
        assert!(at < 8 || verified.is_err(), "byte {at} was edited");
    }
    let longer = [&signed[..], b"\x00\x01\x00"].concat();
    scene.check(&longer, &Proof::Embedded, Err("none of the keys"));
}

#[test]
fn a_signature_beside_the_module_counts_for_that_module() {
    let scene = Scene::new();
    let signature = cosign(&cosign_key(1), MODULE);
    fn blob(signature: &[u8]) -> Proof<'_> {
        Proof::Blob { signature }
    }
    scene.check(MODULE, &blob(&signature), Ok("cosign.pub"));
    let line = [&signature[..], b"\n"].concat();
    scene.check(MODULE, &blob(&line), Ok("cosign.pub"));
    scene.check(
        b"another module",
        &blob(&signature),
        Err("none of the keys"),
    );
    scene.check(
        MODULE,
        &blob(&cosign(&cosign_key(2), MODULE)),
        Err("none of the keys"),
    );
    scene.check(MODULE, &blob(b"no base64!"), Err("isn't base64"));
    scene.check(
        MODULE,
        &blob(b"AAAA"),
        Err("isn't an ECDSA signature in DER"),
    );
    scene.check(
        MODULE,
        &blob(&[b'A'; limits::SIGNATURE_BYTES + 1]),
        Err("longer than 16 KiB"),
    );
}

#[test]
fn an_image_s_signature_counts_for_the_module_inside_it() {
    let scene = Scene::new();
    let manifest_of = |layer: &[u8]| {
        let layer = serde_json::json!({"mediaType": "application/wasm", "digest": digest(layer), "size": layer.len()});
        serde_json::to_vec(&serde_json::json!({"schemaVersion": 2, "layers": [layer]})).unwrap()
    };
    let payload_of = |manifest: &[u8]| {
        let image = serde_json::json!({"docker-manifest-digest": digest(manifest)});
        serde_json::to_vec(&serde_json::json!({"critical": {"image": image, "type": "cosign container image signature"}, "optional": null})).unwrap()
    };
    let manifest = manifest_of(MODULE);
    let payload = payload_of(&manifest);
    let signature = cosign(&cosign_key(1), &payload);
    let proof = Proof::Image {
        manifest: &manifest,
        layer: MODULE,
        payload: &payload,
        signature: &signature,
    };
    scene.check(MODULE, &proof, Ok("cosign.pub"));
    scene.check(
        b"another module",
        &proof,
        Err("the signature is for sha256:"),
    );
    // Each link of the chain is replaced by another one that fits its neighbour.
    let evil_manifest = manifest_of(b"evil");
    let Proof::Image { layer, .. } = proof else {
        unreachable!()
    };
    let swapped = Proof::Image {
        manifest: &evil_manifest,
        layer: b"evil",
        payload: &payload,
        signature: &signature,
    };
    scene.check(b"evil", &swapped, Err("the signature is for sha256:"));
    let swapped = Proof::Image {
        manifest: &manifest,
        layer: b"evil",
        payload: &payload,
        signature: &signature,
    };
    scene.check(b"evil", &swapped, Err("the manifest announces"));
    let evil_payload = payload_of(&evil_manifest);
    let swapped = Proof::Image {
        manifest: &evil_manifest,
        layer: b"evil",
        payload: &evil_payload,
        signature: &signature,
    };
    scene.check(b"evil", &swapped, Err("none of the keys"));
    let nonsense = b"{\"critical\": {}}";
    let signature = cosign(&cosign_key(1), nonsense);
    let swapped = Proof::Image {
        manifest: &manifest,
        layer,
        payload: nonsense,
        signature: &signature,
    };
    scene.check(MODULE, &swapped, Err("names no image"));
    let long = vec![b' '; limits::SIGNATURE_BYTES + 1];
    let signature = cosign(&cosign_key(1), &long);
    let swapped = Proof::Image {
        manifest: &manifest,
        layer,
        payload: &long,
        signature: &signature,
    };
    scene.check(MODULE, &swapped, Err("the signed text is longer"));
}

#[test]
fn keys_come_in_the_formats_that_the_tools_write() {
    let mut trusted = TrustedKeys::default();
    assert!(trusted.is_empty());
    let key = KeyPair::generate().pk;
    trusted.add("own format", &key.to_bytes()).unwrap();
    trusted.add("pem", key.to_pem().as_bytes()).unwrap();
    trusted
        .add("cosign", cosign_pem(&cosign_key(1)).as_bytes())
        .unwrap();
    assert!(!trusted.is_empty());
    let private = KeyPair::generate().sk.to_pem();
    for wrong in [
        &b""[..],
        b"ssh-ed25519 AAAA",
        private.as_bytes(),
        &[0xff; 40],
    ] {
        let error = trusted.add("key.pem", wrong).unwrap_err();
        assert!(
            error.to_string().starts_with("key.pem isn't a public key"),
            "{error}"
        );
    }
    for n in 3..limits::KEYS {
        trusted.add(&format!("key {n}"), &key.to_bytes()).unwrap();
    }
    let error = trusted.add("one more", &key.to_bytes()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "one more would be key 65; the limit is 64"
    );
}

proptest! {
    /// Lengths that exceed the section are rejected before any allocation.
    #[test]
    fn any_bytes_are_a_module_without_a_valid_signature(
        section in proptest::collection::vec(any::<u8>(), 0..200),
        huge in any::<bool>(),
    ) {
        let scene = Scene::new();
        let mut content = b"\x09signature".to_vec();
        if huge {
            content.extend(b"\x01\x01\x01\x01\xff\xff\xff\xff\x0f");
        }
        content.extend(&section);
        let mut module = b"\0asm\x01\0\0\0\x00".to_vec();
        module.extend([0x80 | (content.len() & 0x7f) as u8, (content.len() >> 7) as u8]);
        module.extend(&content);
        prop_assert!(scene.trusted.verify(&module, &Proof::Embedded).is_err());
        prop_assert!(scene.trusted.verify(&section, &Proof::Embedded).is_err());
    }
}
