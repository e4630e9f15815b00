//! The page's files, embedded from the repository: there is no build step, and nothing is fetched
//! from elsewhere.

/// A file that every client gets.
pub(crate) struct Asset {
    pub(crate) path: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! asset {
    ($path:literal, $kind:expr, $file:literal) => {
        Asset {
            path: $path,
            kind: $kind,
            text: include_str!(concat!("../page/", $file)),
        }
    };
}

/// All files.
pub(crate) const ASSETS: &[Asset] = &[
    asset!("/", HTML, "index.html"),
    asset!("/console.css", CSS, "console.css"),
    asset!("/icon.svg", SVG, "icon.svg"),
    asset!("/main.js", SCRIPT, "main.js"),
    asset!("/daemon.js", SCRIPT, "daemon.js"),
    asset!("/counts.js", SCRIPT, "counts.js"),
    asset!("/build.js", SCRIPT, "build.js"),
    asset!("/topology.js", SCRIPT, "topology.js"),
    asset!("/latency.js", SCRIPT, "latency.js"),
    asset!("/policies.js", SCRIPT, "policies.js"),
    asset!("/lists.js", SCRIPT, "lists.js"),
];
