//! The format of messages and statuses in a hand-over.

use serde::{Deserialize, Serialize};
use tollgate_engine::{Status, Unportable};
use tollgate_shm_abi::status::Code;

use tollgate_policy_chain::message::{Body, Message, copy_image};

#[derive(Serialize, Deserialize)]
pub(super) struct StatusForm {
    pub(super) code: u32,
    pub(super) message: String,
    pub(super) retry_after_ms: u32,
    pub(super) trailers: Vec<u8>,
}

impl From<&Status> for StatusForm {
    fn from(status: &Status) -> StatusForm {
        StatusForm {
            code: status.code.0,
            message: status.message.to_string(),
            retry_after_ms: status.retry_after_ms,
            trailers: status.trailers.clone(),
        }
    }
}

impl From<StatusForm> for Status {
    fn from(form: StatusForm) -> Status {
        Status {
            code: Code(form.code),
            message: form.message.into(),
            retry_after_ms: form.retry_after_ms,
            trailers: form.trailers,
        }
    }
}

/// A message: its image, followed by its metadata.
#[derive(Serialize, Deserialize)]
pub(super) struct MessageForm {
    /// Where its bytes begin in the buffer of all messages.
    pub(super) at: usize,
    pub(super) image: usize,
    pub(super) metadata: usize,
    pub(super) inline_len: u32,
    pub(super) total_len: u32,
    pub(super) bare: bool,
    pub(super) body: BodyForm,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BodyForm {
    Private { accepted: bool, extents: Vec<u32> },
    Encoded { start: usize },
}

/// The bytes of all messages.
#[derive(Default)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Bytes {
    pub(super) fn append(&mut self, bytes: &[u8]) -> usize {
        let at = self.0.len();
        self.0.extend_from_slice(bytes);
        at
    }

    pub(super) fn keep(&mut self, message: &Message) -> MessageForm {
        let at = self.0.len();
        let body = match &message.body {
            Body::Private {
                bytes,
                accepted,
                extents,
            } => {
                self.0.extend_from_slice(bytes);
                BodyForm::Private {
                    accepted: *accepted,
                    extents: extents.clone(),
                }
            }
            // As a chain reads it.
            Body::Gathered { inline, spans, .. } => {
                self.0.resize(at + message.total_len as usize, 0);
                let extents = copy_image(inline, spans, &mut self.0[at..]);
                BodyForm::Private {
                    accepted: spans.is_empty(),
                    extents,
                }
            }
            Body::Landed { block, .. } => {
                self.0
                    .extend_from_slice(&block[..message.total_len as usize]);
                BodyForm::Private {
                    accepted: true,
                    extents: Vec::new(),
                }
            }
            Body::Encoded { bytes, start } => {
                self.0.extend_from_slice(bytes);
                BodyForm::Encoded { start: *start }
            }
        };
        let image = self.0.len() - at;
        self.0.extend_from_slice(&message.metadata);
        MessageForm {
            at,
            image,
            metadata: message.metadata.len(),
            inline_len: message.inline_len,
            total_len: message.total_len,
            bare: message.bare,
            body,
        }
    }
}

impl MessageForm {
    pub(super) fn message(self, bytes: &[u8]) -> Result<Message, Unportable> {
        let rest = bytes.get(self.at..).unwrap_or_default();
        let both = rest.split_at_checked(self.image);
        let both = both.and_then(|(image, behind)| Some((image, behind.get(..self.metadata)?)));
        let lost = || Unportable(format!("the bytes of a message at {} are missing", self.at));
        let (image, metadata) = both.ok_or_else(lost)?;
        let within = |at: usize| at <= image.len();
        let (body, is_whole) = match self.body {
            BodyForm::Private { accepted, extents } => {
                let is_whole = image.len() == self.total_len as usize
                    && within(self.inline_len as usize)
                    && extents.iter().all(|&at| within(at as usize));
                let bytes = image.to_vec();
                let body = Body::Private {
                    bytes,
                    accepted,
                    extents,
                };
                (body, is_whole)
            }
            BodyForm::Encoded { start } => {
                let bytes = image.to_vec();
                (Body::Encoded { bytes, start }, within(start))
            }
        };
        if !is_whole {
            let text = format!("the message at {} differs from its stated length", self.at);
            return Err(Unportable(text));
        }
        Ok(Message {
            body,
            inline_len: self.inline_len,
            total_len: self.total_len,
            metadata: metadata.to_vec(),
            bare: self.bare,
        })
    }
}
