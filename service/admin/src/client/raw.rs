//! Requests as bytes, for tests that send what no program would.

use tollgate_shm_abi::status::Code;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;

use crate::client::Client;
use crate::status::Status;

impl Client {
    /// Sends bytes as the one message of a request. Returns the message of the answer; of a stream,
    /// the first.
    ///
    /// # Errors
    /// The daemon's status. INVALID_ARGUMENT: the path can't be one.
    pub fn ask_bytes(&self, path: &str, message: Vec<u8>) -> Result<Vec<u8>, Status> {
        let path = PathAndQuery::try_from(path);
        let path = path.map_err(|error| Status::new(Code::INVALID_ARGUMENT, error.to_string()))?;
        let answer = async {
            let mut grpc = self.ready().await?;
            let messages = tokio_stream::once(message);
            let answers = grpc.streaming(self.request(messages), path, Bytes).await?;
            answers
                .into_inner()
                .message()
                .await
                .map(Option::unwrap_or_default)
        };
        self.block_on(answer)
    }
}

/// Messages as they are.
#[derive(Clone, Copy)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Bytes;
    type Decoder = Bytes;

    fn encoder(&mut self) -> Bytes {
        Bytes
    }

    fn decoder(&mut self) -> Bytes {
        Bytes
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        prost::bytes::BufMut::put_slice(into, &item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = tonic::Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, tonic::Status> {
        let mut bytes = vec![0; prost::bytes::Buf::remaining(from)];
        prost::bytes::Buf::copy_to_slice(from, &mut bytes);
        Ok(Some(bytes))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}
