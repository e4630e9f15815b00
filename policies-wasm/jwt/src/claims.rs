//! The claims of a verified token (RFC 7519), and the rules for them.
//!
//! Only claims that a rule names are parsed. The rest is skipped without allocation or recursion,
//! so the cost is linear in the token's length for any signer. A relevant claim that occurs twice
//! is refused: two parsers might use different ones. An accepted token becomes a [`Pass`], which
//! holds everything that later calls with the same token need: its validity period and the values
//! to copy.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::token::{Refusal, Verified};

/// The maximum number of bytes of a claim that is copied into metadata.
pub(crate) const COPY_BYTES: usize = 1 << 10;

/// A claim's value, as far as rules need it.
#[derive(Clone, Debug, PartialEq)]
enum Claim {
    Text(String),
    Number(f64, String),
    Bool(bool),
    /// An array of strings only.
    Texts(Vec<String>),
    /// `null`, an object, any other array.
    Other,
}

impl Claim {
    /// A text, or an array of texts, as a list.
    fn texts(&self) -> Option<&[String]> {
        match self {
            Claim::Text(text) => Some(std::slice::from_ref(text)),
            Claim::Texts(texts) => Some(texts),
            _ => None,
        }
    }

    /// A NumericDate in milliseconds; fractions are allowed.
    fn millis(&self) -> Option<u64> {
        match self {
            Claim::Number(seconds, _) => Some((seconds * 1000.0) as u64),
            _ => None,
        }
    }

    /// One line of printable ASCII, valid as metadata. Several texts are separated by spaces, so
    /// none may contain one.
    fn line(&self) -> Option<String> {
        let line = match self {
            Claim::Text(text) | Claim::Number(_, text) => text.clone(),
            Claim::Bool(value) => value.to_string(),
            Claim::Texts(texts) if texts.iter().all(|text| !text.contains(' ')) => texts.join(" "),
            Claim::Texts(_) | Claim::Other => return None,
        };
        let fits =
            line.len() <= COPY_BYTES && line.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        fits.then_some(line)
    }

    /// Whether it is, or contains, one of these.
    fn is_one_of(&self, accepted: &[String]) -> bool {
        match self {
            Claim::Text(text) | Claim::Number(_, text) => accepted.contains(text),
            Claim::Bool(value) => accepted.contains(&value.to_string()),
            Claim::Texts(texts) => texts.iter().any(|text| accepted.contains(text)),
            Claim::Other => false,
        }
    }
}

/// The rules for tokens.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) issuer: String,
    /// `aud` must contain one of these; if there are none, `aud` must be absent.
    pub(crate) audience: Vec<String>,
    /// The required claims, with their accepted values; an empty list accepts any value.
    pub(crate) required: BTreeMap<String, Vec<String>>,
    /// All of these must be granted by the scope claim.
    pub(crate) scopes: Vec<String>,
    pub(crate) scope_claim: String,
    /// The claims to copy, in the order of [`Pass::copies`].
    pub(crate) copied: Vec<String>,
    pub(crate) leeway_ms: u64,
}

/// A token that meets the rules, at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    begins_ms: u64,
    /// The first moment at which it isn't valid any more.
    ends_ms: u64,
    /// The values to copy; `None` if the token lacks the claim.
    pub(crate) copies: Vec<Option<String>>,
}

impl Pass {
    /// Checks the validity period, which includes the leeway.
    pub(crate) fn check(&self, now_ms: u64) -> Result<(), Refusal> {
        if now_ms >= self.ends_ms {
            return Err(Refusal::Expired);
        }
        if now_ms < self.begins_ms {
            return Err(Refusal::TooEarly);
        }
        Ok(())
    }
}

impl Rules {
    /// Parses the claims and checks everything except the time.
    pub(crate) fn check(&self, payload: &Verified) -> Result<Pass, Refusal> {
        let claims = self.read(payload.bytes())?;
        if claims.get("iss") != Some(&Claim::Text(self.issuer.clone())) {
            return Err(Refusal::Claims);
        }
        self.check_audience(claims.get("aud"))?;
        for (name, accepted) in &self.required {
            let claim = claims.get(name.as_str()).ok_or(Refusal::Claims)?;
            if !accepted.is_empty() && !claim.is_one_of(accepted) {
                return Err(Refusal::Claims);
            }
        }
        let pass = self.pass(&claims)?;
        self.check_scopes(claims.get(self.scope_claim.as_str()))?;
        Ok(pass)
    }

    fn read(&self, json: &[u8]) -> Result<BTreeMap<&str, Claim>, Refusal> {
        let registered = ["iss", "aud", "exp", "nbf", &self.scope_claim];
        let named = self.required.keys().chain(&self.copied);
        let wanted: Vec<&str> = registered
            .into_iter()
            .chain(named.map(String::as_str))
            .collect();
        let mut deserializer = serde_json::Deserializer::from_slice(json);
        let claims = Wanted(&wanted).deserialize(&mut deserializer);
        let claims = claims.map_err(|_| Refusal::Malformed)?;
        deserializer.end().map_err(|_| Refusal::Malformed)?;
        Ok(claims)
    }

    /// RFC 7519, 4.1.3: a recipient that `aud` doesn't name must refuse the token; a recipient
    /// without a name can't be named.
    fn check_audience(&self, audience: Option<&Claim>) -> Result<(), Refusal> {
        let met = match audience {
            None => self.audience.is_empty(),
            Some(claim) => claim
                .texts()
                .is_some_and(|named| named.iter().any(|name| self.audience.contains(name))),
        };
        met.then_some(()).ok_or(Refusal::Claims)
    }

    fn check_scopes(&self, granted: Option<&Claim>) -> Result<(), Refusal> {
        // A text is a list separated by spaces (RFC 8693); an array has one scope per element.
        let is_granted = |scope: &String| match granted {
            Some(Claim::Text(text)) => text.split(' ').any(|word| word == scope),
            Some(Claim::Texts(texts)) => texts.contains(scope),
            _ => false,
        };
        let met = self.scopes.iter().all(is_granted);
        met.then_some(()).ok_or(Refusal::Scope)
    }

    fn pass(&self, claims: &BTreeMap<&str, Claim>) -> Result<Pass, Refusal> {
        let time = |name| {
            claims
                .get(name)
                .map(|claim| claim.millis().ok_or(Refusal::Malformed))
        };
        // A token without an end would be valid until its key is removed.
        let ends_ms = time("exp").ok_or(Refusal::Claims)??;
        let begins_ms = time("nbf").transpose()?.unwrap_or(0);
        // A claim that can't be copied unchanged refuses the call: without the copy, the server
        // would see an anonymous caller.
        let copy = |name: &String| match claims.get(name.as_str()) {
            Some(claim) => claim.line().ok_or(Refusal::Claims).map(Some),
            None => Ok(None),
        };
        Ok(Pass {
            begins_ms: begins_ms.saturating_sub(self.leeway_ms),
            ends_ms: ends_ms.saturating_add(self.leeway_ms),
            copies: self.copied.iter().map(copy).collect::<Result<_, _>>()?,
        })
    }
}

/// Parses the claims with these names from an object.
struct Wanted<'w, 'n>(&'w [&'n str]);

impl<'n, 'de> DeserializeSeed<'de> for Wanted<'_, 'n> {
    type Value = BTreeMap<&'n str, Claim>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'n, 'de> Visitor<'de> for Wanted<'_, 'n> {
    type Value = BTreeMap<&'n str, Claim>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of claims")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut claims = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let Some(wanted) = self.0.iter().find(|wanted| **wanted == name) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if claims.insert(*wanted, map.next_value()?).is_some() {
                return Err(A::Error::custom("a claim comes twice"));
            }
        }
        Ok(claims)
    }
}

impl<'de> Deserialize<'de> for Claim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Claim, D::Error> {
        deserializer.deserialize_any(ClaimVisitor)
    }
}

struct ClaimVisitor;

impl<'de> Visitor<'de> for ClaimVisitor {
    type Value = Claim;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a claim's value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Claim, E> {
        Ok(Claim::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Claim, E> {
        Ok(Claim::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Claim, E> {
        Ok(Claim::Number(value as f64, value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Claim, E> {
        Ok(Claim::Number(value as f64, value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Claim, E> {
        Ok(Claim::Number(value, value.to_string()))
    }

    fn visit_unit<E>(self) -> Result<Claim, E> {
        Ok(Claim::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Claim, A::Error> {
        let mut texts = Some(Vec::new());
        while let Some(Element(element)) = array.next_element()? {
            match (element, &mut texts) {
                (Some(text), Some(texts)) => texts.push(text),
                _ => texts = None,
            }
        }
        Ok(texts.map_or(Claim::Other, Claim::Texts))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Claim, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Claim::Other)
    }
}

/// An element of an array: a text, or another value, which is skipped without recursion.
struct Element(Option<String>);

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(ElementVisitor).map(Element)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an element")
    }

    fn visit_str<E>(self, text: &str) -> Result<Option<String>, E> {
        Ok(Some(text.to_owned()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<String>, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Option<String>, A::Error> {
        while array.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}
