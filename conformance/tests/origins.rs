//! The origins of policies: images of a real registry (go-containerregistry's), in every layout;
//! and a daemon that accepts only signed modules.
//!
//! `.ci/registry` builds the registry; without it these tests fail and name it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{DerSignature, SigningKey, VerifyingKey};
use p256::pkcs8::{EncodePublicKey as _, LineEnding};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tollgate_conformance::ports::free;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{Daemon, Outcome, Testbed, policy_file};
use tollgate_provenance::{Layout, limits};
use tollgate_registry::{FetchError, SIGNATURES, fetch};
use wasmsign2::{KeyPair, Module, SecretKey};

const OCI: &str = "application/vnd.oci.image.manifest.v1+json";

/// Cosign's statement about an image.
fn simple_signing(digest: &str) -> Vec<u8> {
    let critical = json!({"identity": {"docker-reference": ""}, "image": {"docker-manifest-digest": digest},
        "type": "cosign container image signature"});
    serde_json::to_vec(&json!({"critical": critical, "optional": null})).unwrap()
}

fn cosign(key: &SigningKey, signed: &[u8]) -> String {
    let signature: DerSignature = key.sign(signed);
    BASE64_STANDARD.encode(signature.as_bytes())
}

/// A registry for this test alone, on a free port, which ends with the test.
struct Registry {
    process: Child,
    host: String,
}

impl Registry {
    fn start() -> Registry {
        let binary = binary();
        assert!(
            binary.exists(),
            "{} isn't there: build it with .ci/registry",
            binary.display()
        );
        let address = free();
        let process = Command::new(binary)
            .args(["-port", &address.port().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let host = address.to_string();
        // From here on it ends with the test, for any reason.
        let registry = Registry { process, host };
        for _ in 0..500 {
            if TcpStream::connect(address).is_ok() {
                return registry;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the registry doesn't listen on {address}");
    }

    /// Stores blobs and a manifest; returns the manifest's digest.
    fn push(&self, name: &str, media_type: &str, blobs: &[&[u8]], manifest: &Value) -> String {
        let (repository, tag) = name.rsplit_once(':').unwrap();
        for blob in blobs {
            let path = format!("{repository}/blobs/uploads/?digest={}", digest(blob));
            self.send("POST", &path, "application/octet-stream", blob);
        }
        let manifest = serde_json::to_vec(manifest).unwrap();
        let path = format!("{repository}/manifests/{tag}");
        self.send("PUT", &path, media_type, &manifest);
        digest(&manifest)
    }

    fn send(&self, verb: &str, path: &str, media_type: &str, body: &[u8]) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        let (host, len) = (&self.host, body.len());
        let head = format!(
            "{verb} /v2/{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {media_type}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 201"),
            "{verb} {path}: {answer}"
        );
    }

    fn push_module(&self, name: &str, layer_type: &str, layer: &[u8]) -> String {
        self.push(name, OCI, &[b"{}", layer], &manifest(layer_type, layer))
    }

    /// Stores signatures where cosign does.
    fn sign(&self, repository: &str, digest: &str, payload: &[u8], signatures: &[String]) {
        let layer = |signature: &String| {
            let simple = "application/vnd.dev.cosign.simplesigning.v1+json";
            let mut layer = descriptor(simple, payload);
            layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
            layer
        };
        let layers: Vec<Value> = signatures.iter().map(layer).collect();
        let config = descriptor("application/vnd.oci.image.config.v1+json", b"{}");
        let manifest =
            json!({"schemaVersion": 2, "mediaType": OCI, "config": config, "layers": layers});
        let beside = format!("{repository}:{}.sig", digest.replace(':', "-"));
        self.push(&beside, OCI, &[b"{}", payload], &manifest);
    }

    fn fetch(&self, name: &str) -> Result<tollgate_registry::Fetched, FetchError> {
        fetch(&format!("oci://{}/{name}", self.host))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _gone_already = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// `target/registry/registry`, next to the profile's directory that this test runs from.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TOLLGATE_TEST_REGISTRY") {
        return path.into();
    }
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    target.join("registry/registry")
}

fn digest(bytes: &[u8]) -> String {
    let hex = |byte: &u8| format!("{byte:02x}");
    let hex: String = Sha256::digest(bytes).iter().map(hex).collect();
    format!("sha256:{hex}")
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": digest(bytes), "size": bytes.len()})
}

fn manifest(layer_type: &str, layer: &[u8]) -> Value {
    let config = descriptor("application/vnd.wasm.config.v0+json", b"{}");
    json!({"schemaVersion": 2, "mediaType": OCI, "config": config, "layers": [descriptor(layer_type, layer)]})
}

fn packed(module: &[u8]) -> Vec<u8> {
    zipped(&plain(module))
}

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    zipped.write_all(bytes).unwrap();
    zipped.finish().unwrap()
}

fn plain(module: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(module.len() as u64);
    archive
        .append_data(&mut header, "plugin.wasm", module)
        .unwrap();
    archive.into_inner().unwrap()
}

#[test]
fn every_layout_is_fetched_by_tag_and_by_digest() {
    let registry = Registry::start();
    let module = b"\0asm\x01\0\0\0";
    let archive = packed(module);
    let docker = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    let istio = "application/vnd.module.wasm.content.layer.v1+wasm";
    for (name, layer_type, layer, layout) in [
        ("acme/cncf", "application/wasm", &module[..], Layout::Cncf),
        ("acme/istio", istio, module, Layout::IstioOci),
        ("acme/compat", docker, &archive, Layout::IstioCompat),
    ] {
        let digest = registry.push_module(&format!("{name}:1"), layer_type, layer);
        for reference in [format!("{name}:1"), format!("{name}@{digest}")] {
            let fetched = registry.fetch(&reference).unwrap();
            assert_eq!((&fetched.module[..], fetched.layout), (&module[..], layout));
            assert_eq!(fetched.pinned, format!("{}/{name}@{digest}", registry.host));
            assert_eq!(fetched.layer, layer);
            assert!(fetched.signatures.is_empty());
        }
    }
}

#[test]
fn an_index_leads_to_its_image() {
    let registry = Registry::start();
    let digest = registry.push_module("acl:one", "application/wasm", b"module");
    let index = "application/vnd.oci.image.index.v1+json";
    let entry = json!({"mediaType": OCI, "digest": digest, "size": 400,
        "platform": {"architecture": "wasm", "os": "wasi"}});
    let content = json!({"schemaVersion": 2, "mediaType": index, "manifests": [entry]});
    registry.push("acl:all", index, &[], &content);
    let fetched = registry.fetch("acl:all").unwrap();
    assert_eq!(fetched.module, b"module");
    assert!(fetched.pinned.ends_with(&digest), "{}", fetched.pinned);
}

/// The output of `docker buildx build --push`: provenance next to the image, and layers from
/// builders that compress in parallel.
#[test]
fn an_image_of_buildx_is_fetched() {
    let registry = Registry::start();
    let tar = plain(b"module");
    let layer: Vec<u8> = tar.chunks(700).flat_map(zipped).collect();
    let layer_type = "application/vnd.oci.image.layer.v1.tar+gzip";
    let image = registry.push_module("acl:image", layer_type, &layer);
    let about = registry.push_module("acl:about", "application/vnd.in-toto+json", b"{}");
    let index = "application/vnd.oci.image.index.v1+json";
    let content = json!({"schemaVersion": 2, "mediaType": index, "manifests": [
        {"mediaType": OCI, "digest": image, "size": 400, "platform": {"architecture": "amd64", "os": "linux"}},
        {"mediaType": OCI, "digest": about, "size": 400, "platform": {"architecture": "unknown", "os": "unknown"},
            "annotations": {"vnd.docker.reference.digest": image, "vnd.docker.reference.type": "attestation-manifest"}},
    ]});
    registry.push("acl:1", index, &[], &content);
    let fetched = registry.fetch("acl:1").unwrap();
    assert_eq!(
        (&fetched.module[..], fetched.layout),
        (&b"module"[..], Layout::IstioCompat)
    );
    assert!(fetched.pinned.ends_with(&image), "{}", fetched.pinned);
}

#[test]
fn the_signatures_beside_an_image_come_with_it() {
    let registry = Registry::start();
    let digest = registry.push_module("acl:1", "application/wasm", b"module");
    registry.sign("acl", &digest, b"payload", &["c2lnbmF0dXJl".to_owned()]);
    let fetched = registry.fetch("acl:1").unwrap();
    assert_eq!(fetched.signatures.len(), 1);
    assert_eq!(fetched.signatures[0].payload, b"payload");
    assert_eq!(fetched.signatures[0].signature, b"c2lnbmF0dXJl");
}

#[test]
fn what_can_not_be_fetched_is_said_with_the_image_s_name() {
    let registry = Registry::start();
    let check = |name: &str, part: &str| {
        let error = registry.fetch(name).unwrap_err().to_string();
        assert!(error.contains(part), "{error:?} lacks {part:?}");
        assert!(
            error.contains(&registry.host),
            "{error:?} doesn't name the image"
        );
    };
    check(
        "nobody/nothing:1",
        "doesn't exist, or isn't shown without a login",
    );
    registry.push_module("acl:page", "text/html", b"<html>");
    check(
        "acl:page",
        "no layer of the image holds a module; its layers are [\"text/html\"]",
    );
    check("acl:missing", "doesn't exist");
    // A layer that is larger than its manifest states.
    let large = vec![0; limits::LAYER_BYTES + 1];
    let mut lie = manifest("application/wasm", &large);
    lie["layers"][0]["size"] = json!(8);
    registry.push("acl:large", OCI, &[b"{}", &large], &lie);
    check("acl:large", "the layer has more than 2097152 bytes");
    let absent = fetch("oci://127.0.0.1:1/acl:1").unwrap_err().to_string();
    assert!(
        absent.contains("127.0.0.1:1/acl:1 can't be fetched") && absent.contains("refused"),
        "{absent}"
    );
}

/// A daemon that trusts one key of each kind.
struct Demanding {
    bed: Testbed,
    daemon: Daemon,
    embedded: SecretKey,
    cosign: SigningKey,
}

impl Demanding {
    fn start() -> Demanding {
        let bed = Testbed::new();
        let (embedded, cosign) = (
            KeyPair::generate(),
            SigningKey::from_slice(&[7; 32]).unwrap(),
        );
        let pem = VerifyingKey::from(&cosign).to_public_key_pem(LineEnding::LF);
        let keys = [
            bed.file("release.pem", embedded.pk.to_pem()),
            bed.file("cosign.pub", pem.unwrap()),
        ];
        let socket = bed.path("a.sock");
        let config = format!(
            "name = 'a'\nlisten = '127.0.0.1:0'\nsocket = {socket:?}\n[policies]\ntrusted_keys = {keys:?}"
        );
        let config = bed.file("a.toml", &config).display().to_string();
        let started = Process::start(&program("tollgated"), &["--config".to_owned(), config]);
        let daemon = Daemon::ready(started.unwrap());
        daemon.tenant("acme");
        let embedded = embedded.sk;
        Demanding {
            bed,
            daemon,
            embedded,
            cosign,
        }
    }

    fn push(&self, module: &str, more: &[&str]) -> Outcome {
        let push = [
            "policy", "push", module, "--tenant", "acme", "--name", "null",
        ];
        self.daemon.tollgate([&push[..], more].concat())
    }

    #[track_caller]
    fn accepts(&self, module: &str, more: &[&str]) {
        let outcome = self.push(module, more);
        assert_eq!(outcome.code, 0, "{outcome}");
    }

    #[track_caller]
    fn refuses(&self, module: &str, more: &[&str], code: i32, part: &str) {
        let outcome = self.push(module, more);
        assert_eq!(outcome.code, code, "{outcome}");
        assert!(outcome.err.contains(part), "{outcome} lacks {part:?}");
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.bed.path(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }
}

fn embed(key: &SecretKey, module: &[u8]) -> Vec<u8> {
    let module = Module::deserialize(&mut std::io::Cursor::new(module)).unwrap();
    let mut signed = Vec::new();
    let module = key.sign(module, None).unwrap();
    module.serialize(&mut signed).unwrap();
    signed
}

const PERMISSION_DENIED: i32 = 7;
const NOT_FOUND: i32 = 5;
const INVALID_ARGUMENT: i32 = 3;

#[test]
fn a_demanding_daemon_takes_files_that_a_trusted_key_signed() {
    let scene = Demanding::start();
    let null = policy_file("null").display().to_string();
    let module = std::fs::read(&null).unwrap();
    let unsigned = "isn't signed; this daemon takes modules signed with release.pem, cosign.pub";
    scene.refuses(&null, &[], PERMISSION_DENIED, unsigned);
    let signed = scene.file("signed.wasm", &embed(&scene.embedded, &module));
    scene.accepts(&signed, &[]);
    let stranger = embed(&KeyPair::generate().sk, &module);
    let stranger = scene.file("stranger.wasm", &stranger);
    scene.refuses(&stranger, &[], PERMISSION_DENIED, "none of the keys");
    let signature = scene.file("null.sig", cosign(&scene.cosign, &module).as_bytes());
    scene.accepts(&null, &["--signature", &signature]);
    let other = policy_file("acl").display().to_string();
    scene.refuses(
        &other,
        &["--signature", &signature],
        PERMISSION_DENIED,
        "none of the keys",
    );
    let nonsense = scene.file("nonsense.sig", b"hello");
    scene.refuses(
        &null,
        &["--signature", &nonsense],
        PERMISSION_DENIED,
        "malformed",
    );
    let huge = scene.file("huge.sig", &vec![b'A'; 5 << 20]);
    scene.refuses(
        &null,
        &["--signature", &huge],
        INVALID_ARGUMENT,
        "the proof of origin has 5242",
    );
}

#[test]
fn a_demanding_daemon_takes_images_that_a_trusted_key_signed() {
    let (scene, registry) = (Demanding::start(), Registry::start());
    let module = std::fs::read(policy_file("null")).unwrap();
    let image = |name: &str| format!("oci://{}/{name}", registry.host);
    registry.push_module("acme/unsigned:1", "application/wasm", &module);
    scene.refuses(
        &image("acme/unsigned:1"),
        &[],
        PERMISSION_DENIED,
        "isn't signed",
    );
    let docker = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    let archive = packed(&module);
    for (name, layer_type, layer) in [
        ("acme/null", "application/wasm", &module),
        ("acme/compat", docker, &archive),
    ] {
        let digest = registry.push_module(&format!("{name}:1"), layer_type, layer);
        let payload = simple_signing(&digest);
        registry.sign(name, &digest, &payload, &[cosign(&scene.cosign, &payload)]);
        scene.accepts(&image(&format!("{name}:1")), &[]);
        scene.accepts(&image(&format!("{name}@{digest}")), &[]);
    }
    // The signature of one image, stored for another.
    let signed = digest(&serde_json::to_vec(&manifest("application/wasm", &module)).unwrap());
    let acl = std::fs::read(policy_file("acl")).unwrap();
    let other = registry.push_module("acme/other:1", "application/wasm", &acl);
    let payload = simple_signing(&signed);
    registry.sign(
        "acme/other",
        &other,
        &payload,
        &[cosign(&scene.cosign, &payload)],
    );
    scene.refuses(
        &image("acme/other:1"),
        &[],
        PERMISSION_DENIED,
        "the signature is for sha256:",
    );
    scene.refuses(&image("acme/missing:1"), &[], NOT_FOUND, "doesn't exist");
    let signature = ["--signature", "x.sig"];
    scene.refuses(
        &image("acme/null:1"),
        &signature,
        INVALID_ARGUMENT,
        "--signature is for a file",
    );
}

/// Modules in a registry, each an image of its own.
struct Images {
    registry: Registry,
    key: SigningKey,
}

impl Images {
    /// Stores a module that no other image has. Returns the image's name, without tag or digest,
    /// and its digest.
    fn add(&self, name: &str, signed: bool) -> (String, String) {
        let mut module = std::fs::read(policy_file("null")).unwrap();
        module.extend([0, name.len() as u8 + 1, name.len() as u8]);
        module.extend(name.as_bytes());
        let stored = format!("{name}:1");
        let digest = self
            .registry
            .push_module(&stored, "application/wasm", &module);
        if signed {
            let payload = simple_signing(&digest);
            let signature = cosign(&self.key, &payload);
            self.registry.sign(name, &digest, &payload, &[signature]);
        }
        (format!("oci://{}/{name}", self.registry.host), digest)
    }
}

#[test]
fn documents_and_owners_take_images_under_the_signers_of_the_ceiling() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.token_file(&daemon.tenant("acme"));
    let owner = ["--token-file", &token.display().to_string()].map(str::to_owned);
    let images = Images {
        registry: Registry::start(),
        key: SigningKey::from_slice(&[7; 32]).unwrap(),
    };
    let apply = |policy: Value, more: &[String]| {
        let document = json!({"policies": [policy]}).to_string();
        let file = bed.file("state.yaml", document).display().to_string();
        let args = ["apply", "-f", &file].map(str::to_owned);
        daemon.tollgate([&args[..], more].concat())
    };
    let p = |module: &str| json!({"tenant": "acme", "name": "p", "module": module});
    let ends = |outcome: Outcome, counts: &str| {
        assert_eq!(outcome.code, 0, "{outcome}");
        let last = outcome.out.lines().next_back().unwrap_or_default();
        let expected = format!("{counts}, 0 changed, 0 deleted, ");
        assert!(last.starts_with(&expected), "{counts}: {outcome}");
    };
    let push = |image: &str| {
        let args = ["policy", "push", image, "--name", "q"].map(str::to_owned);
        daemon.tollgate([&args[..], &owner].concat())
    };

    // By digest, twice; as an operator and as the owner.
    let (name, digest) = images.add("acme/first", false);
    let first = p(&format!("{name}@{digest}"));
    ends(apply(first.clone(), &[]), "1 created");
    ends(apply(first.clone(), &[]), "0 created");
    ends(apply(first.clone(), &owner), "0 created");
    let (other, other_digest) = images.add("acme/owners", false);
    let owners = p(&format!("{other}@{other_digest}"));
    ends(apply(owners, &owner), "1 created");
    let pushed = push(&format!("{other}:1"));
    assert_eq!((pushed.code, pushed.out.as_str()), (0, "q@1\n"));
    // Not by a tag, and not with another signature.
    let tagged = apply(p(&format!("{name}:1")), &[]);
    assert_eq!(tagged.code, INVALID_ARGUMENT, "{tagged}");
    let words = ["may be another image tomorrow", ":1@sha256:DIGEST"];
    assert!(
        words.iter().all(|word| tagged.err.contains(word)),
        "{tagged}"
    );
    let mut beside = first.clone();
    beside["signature"] = json!("p.sig");
    let beside = apply(beside, &[]);
    assert_eq!(beside.code, INVALID_ARGUMENT, "{beside}");
    let word = "`signature` is for a module in a file";
    assert!(beside.err.contains(word), "{beside}");

    // Signers count for new versions, whoever applies or pushes.
    let pem = VerifyingKey::from(&images.key).to_public_key_pem(LineEnding::LF);
    let pem = pem.unwrap();
    let key: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    daemon.ok(&format!("ceiling set signers={key} --tenant acme --yes"));
    ends(apply(first, &[]), "0 created");
    let (name, digest) = images.add("acme/unsigned", false);
    let unsigned = p(&format!("{name}@{digest}"));
    for refused in [
        apply(unsigned.clone(), &[]),
        apply(unsigned, &owner),
        push(&format!("{name}:1")),
    ] {
        assert_eq!(refused.code, PERMISSION_DENIED, "{refused}");
        let words = ["`signers` = 1 key", "an operator can change it"];
        assert!(
            words.iter().all(|word| refused.err.contains(word)),
            "{refused}"
        );
    }
    for (image, more) in [("acme/signed", &[][..]), ("acme/too", &owner[..])] {
        let (name, digest) = images.add(image, true);
        let signed = p(&format!("{name}@{digest}"));
        ends(apply(signed.clone(), more), "1 created");
        ends(apply(signed, more), "0 created");
    }
    let (name, _) = images.add("acme/pushed", true);
    let pushed = push(&format!("{name}:1"));
    assert_eq!((pushed.code, pushed.out.as_str()), (0, "q@2\n"));
}

#[test]
fn of_many_signatures_the_first_eight_count() {
    let (scene, registry) = (Demanding::start(), Registry::start());
    let module = std::fs::read(policy_file("null")).unwrap();
    let stranger = SigningKey::from_slice(&[9; 32]).unwrap();
    for (name, strangers) in [("late", SIGNATURES), ("in-time", SIGNATURES - 1)] {
        let digest = registry.push_module(&format!("{name}:1"), "application/wasm", &module);
        let payload = simple_signing(&digest);
        let mut signatures = vec![cosign(&stranger, &payload); strangers];
        signatures.push(cosign(&scene.cosign, &payload));
        registry.sign(name, &digest, &payload, &signatures);
    }
    let image = |name: &str| format!("oci://{}/{name}:1", registry.host);
    scene.refuses(&image("late"), &[], PERMISSION_DENIED, "none of the keys");
    scene.accepts(&image("in-time"), &[]);
}

#[test]
fn a_key_that_is_none_keeps_the_daemon_from_starting() {
    let bed = Testbed::new();
    let key = bed.file("key.pem", "no key");
    let config = format!(
        "socket = {:?}\n[policies]\ntrusted_keys = [{key:?}]",
        bed.path("a.sock")
    );
    let config = bed.file("a.toml", &config);
    let ended = Command::new(program("tollgated"))
        .arg("--config")
        .arg(config)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(
        !ended.status.success() && said.contains("key.pem isn't a public key"),
        "{said}"
    );
}
