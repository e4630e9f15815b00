//! The answers of `tollgate serve`, by reflection: the same to every call, of any type.
//!
//! | requests → responses | `--reply` | `--echo` |
//! |---|---|---|
//! | one → one | the reply | the request |
//! | one → a stream | each of the replies | the request, once |
//! | a stream → one | the reply, after the last request | the last request |
//! | a stream → a stream | each of the replies, for every request | each request |
//!
//! Requests are answered on arrival, so a conversation gets its answers before it goes on.

use std::sync::Arc;

use serde_json::{Deserializer, Value};
use tollgate::codec::RawBlock;
use tollgate::{HandlerFuture, Incoming, MetadataBuf, Requests, Responder, ServiceInfo, Status};
use tollgate_shm_abi::status::Code;

use crate::failure::Failure;
use crate::metadata;
use crate::output;
use crate::rpc::args::Serve;
use crate::schema::{Method, Service};

/// The answer of a method.
enum Reply {
    Fixed(Vec<Vec<u8>>),
    Echo,
    /// The given JSON isn't a reply of this method; the sentence has the reason.
    None(String),
}

/// The answers of this server.
pub(crate) struct Answers {
    service: Service,
    replies: Vec<Reply>,
    /// The metadata of every reply.
    metadata: MetadataBuf,
    print_requests: bool,
    show_metadata: bool,
}

impl Answers {
    /// The answers of a service's methods. `json` is the value of `--reply`.
    pub(crate) fn new(
        service: Service,
        args: &Serve,
        json: Option<&str>,
    ) -> Result<Answers, Failure> {
        let replies = match json {
            Some(json) => fixed(&service, json),
            None => service.methods()?.iter().map(echo).collect(),
        };
        Ok(Answers {
            replies: replies?,
            service,
            metadata: metadata::collect(&args.metadata)?,
            print_requests: args.print_requests,
            show_metadata: args.show_metadata,
        })
    }
}

/// Fixed replies. They may fit only some methods, but must fit at least one.
fn fixed(service: &Service, json: &str) -> Result<Vec<Reply>, Failure> {
    let values = values(json);
    let methods = service.methods()?;
    let blocks: Vec<_> = methods
        .iter()
        .map(|method| blocks(method, &values))
        .collect();
    if let (false, Some(Err(failure))) = (blocks.iter().any(Result::is_ok), blocks.first()) {
        return Err(failure.clone());
    }
    let reply = |blocks: Result<_, Failure>| {
        blocks.map_or_else(|failure| Reply::None(failure.sentence()), Reply::Fixed)
    };
    Ok(blocks.into_iter().map(reply).collect())
}

fn blocks(method: &Method<'_>, values: &[&str]) -> Result<Vec<Vec<u8>>, Failure> {
    if !method.answers_many() && values.len() != 1 {
        let (name, count) = (method.name(), values.len());
        return Err(Failure::input(format_args!(
            "method {name} answers with one reply, and --reply has {count}"
        )));
    }
    values.iter().map(|json| method.reply(json)).collect()
}

/// The consecutive JSON values of a text. An invalid value takes the rest of the text, and its
/// parser reports the error.
fn values(text: &str) -> Vec<&str> {
    let mut stream = Deserializer::from_str(text).into_iter::<Value>();
    let mut values = Vec::new();
    loop {
        let begin = stream.byte_offset();
        match stream.next() {
            Some(Ok(_)) => values.push(text[begin..stream.byte_offset()].trim()),
            Some(Err(_)) => {
                values.push(text[begin..].trim());
                return values;
            }
            None => return values,
        }
    }
}

fn echo(method: &Method<'_>) -> Result<Reply, Failure> {
    if method.is_symmetric() {
        return Ok(Reply::Echo);
    }
    let sentence = format!(
        "method {} can't be echoed: its request and its reply have different types",
        method.name()
    );
    Err(Failure::input(sentence).hint("--reply '{}'"))
}

/// The service with these answers.
pub(crate) struct Answering(pub(crate) Arc<Answers>);

impl tollgate::Service for Answering {
    fn info(&self) -> ServiceInfo<'_> {
        ServiceInfo {
            name: self.0.service.name(),
            methods: &[],
            descriptor_set: self.0.service.descriptor_set(),
        }
    }

    fn call(&self, method: usize, call: Incoming) -> HandlerFuture {
        let answers = Arc::clone(&self.0);
        Box::pin(async move { answers.answer(method, call).await })
    }
}

impl Answers {
    async fn answer(&self, index: usize, call: Incoming) {
        let (mut requests, mut responder) = call.into_stream();
        let came = requests.take_metadata();
        let (beside, told, many) = match self.begin(index, &came) {
            Ok(begun) => begun,
            Err(status) => return responder.fail(&status),
        };
        let ended = match many {
            true => {
                told.each(&mut requests, &mut responder, &came, &beside)
                    .await
            }
            false => told.last(&mut requests, &came).await,
        };
        match ended {
            Ok(Some(last)) => responder.reply_with(&RawBlock(last), &beside).await,
            Ok(None) => responder.finish(MetadataBuf::new()),
            Err(status) => responder.fail(&status),
        }
    }

    /// The metadata of the replies, the replies, and whether they are a stream.
    fn begin(
        &self,
        index: usize,
        came: &MetadataBuf,
    ) -> Result<(MetadataBuf, Told<'_>, bool), Status> {
        let unimplemented = |text| Status::new(Code::UNIMPLEMENTED, text);
        let reply = match self.replies.get(index) {
            Some(Reply::None(why)) => {
                return Err(unimplemented(format!("this server has no reply: {why}")));
            }
            Some(reply) => reply,
            None => {
                let name = self.service.name();
                return Err(unimplemented(format!(
                    "{name} has no method number {index}"
                )));
            }
        };
        let methods = self.service.methods().map_err(Failure::into_status)?;
        let told = Told {
            answers: self,
            index,
            reply,
        };
        Ok((
            self.beside(reply, came)?,
            told,
            methods[index].answers_many(),
        ))
    }
}

/// One call with its responder.
struct Told<'a> {
    answers: &'a Answers,
    index: usize,
    reply: &'a Reply,
}

impl Told<'_> {
    /// Answers each request with its part of a stream.
    async fn each(
        &self,
        requests: &mut Requests,
        responder: &mut Responder,
        came: &MetadataBuf,
        beside: &MetadataBuf,
    ) -> Result<Option<Vec<u8>>, Status> {
        responder.send_metadata(beside).await?;
        let mut came = Some(came);
        while let Some(request) = requests.next().await? {
            self.print(&request, came.take())?;
            match self.reply {
                Reply::Echo => responder.respond(&RawBlock(&request[..])).await?,
                Reply::Fixed(blocks) => {
                    for block in blocks {
                        responder.respond(&RawBlock(block)).await?;
                    }
                }
                Reply::None(_) => {}
            }
        }
        Ok(None)
    }

    /// The one reply, once all requests have come.
    async fn last(
        &self,
        requests: &mut Requests,
        came: &MetadataBuf,
    ) -> Result<Option<Vec<u8>>, Status> {
        let mut came = Some(came);
        let mut last = None;
        while let Some(request) = requests.next().await? {
            self.print(&request, came.take())?;
            last = Some(request);
        }
        match (self.reply, last) {
            (Reply::Fixed(blocks), _) => Ok(blocks.first().cloned()),
            (_, Some(last)) => Ok(Some(last.to_vec())),
            (_, None) => {
                let text = "there is nothing to echo: the call had no request";
                Err(Status::new(Code::INVALID_ARGUMENT, text))
            }
        }
    }

    /// Prints a request, with the metadata for the first of a call.
    fn print(&self, request: &[u8], came: Option<&MetadataBuf>) -> Result<(), Status> {
        let printed = self.answers.print(self.index, request, came);
        printed.map_err(Failure::into_status)
    }
}

impl Answers {
    /// The metadata of the replies.
    fn beside(&self, reply: &Reply, came: &MetadataBuf) -> Result<MetadataBuf, Status> {
        if !matches!(reply, Reply::Echo) {
            return Ok(self.metadata.clone());
        }
        let mut metadata = came.clone();
        for (key, value) in self.metadata.view().iter() {
            metadata.push(key, value)?;
        }
        Ok(metadata)
    }

    fn print(
        &self,
        index: usize,
        request: &[u8],
        came: Option<&MetadataBuf>,
    ) -> Result<(), Failure> {
        if !self.print_requests {
            return Ok(());
        }
        let json = self.service.methods()?[index].request_json(request)?;
        let mut lines = output::json(&json);
        if let Some(came) = came.filter(|_| self.show_metadata) {
            lines += &metadata::json(came);
        }
        // If the user asked for printed requests, a server that can't print is useless.
        output::print(&lines).unwrap_or_else(|failure| failure.end());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::values;

    #[test]
    fn values_follow_each_other_on_lines_or_over_them() {
        let check = |text: &str, expected: &[&str]| assert_eq!(values(text), expected, "{text}");
        check("", &[]);
        check(r#"{"a": 1}"#, &[r#"{"a": 1}"#]);
        check(
            "{}\n{\n  \"a\": 1\n}\n{}\n",
            &["{}", "{\n  \"a\": 1\n}", "{}"],
        );
        // The parser reports an invalid value.
        check("{} {\"a\": oh", &["{}", "{\"a\": oh"]);
    }
}
