//! Clients of one endpoint: OTLP over gRPC and over HTTP.

use std::io::Write;
use std::time::SystemTime;

use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, ClientTlsConfig};
use tonic_prost::ProstCodec;

use super::batch::Batch;
use super::endpoint::{Endpoint, EndpointError, Protocol};
use super::refused::{Refused, because, retry_after};
use crate::limits::{CONNECT_TIMEOUT, MAX_ANSWER_BYTES};
use crate::otlp::TracesRequest;

/// The reason why a client can't be created.
#[derive(Debug, thiserror::Error)]
enum ClientError {
    #[error(transparent)]
    Url(tonic::codegen::http::uri::InvalidUri),
    #[error(transparent)]
    Tls(tonic::transport::Error),
    #[error(transparent)]
    Http(reqwest::Error),
}

pub(super) enum Client {
    Grpc(Grpc),
    Http(Http),
}

impl Client {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Client, EndpointError> {
        let _chosen_before = rustls::crypto::ring::default_provider().install_default();
        let made = match endpoint.protocol {
            Protocol::Grpc => Grpc::new(endpoint).map(Client::Grpc),
            Protocol::Http => Http::new(endpoint).map(Client::Http),
        };
        made.map_err(|error| EndpointError::Unusable {
            url: endpoint.url.clone(),
            why: because(&error),
        })
    }

    /// Returns the number of items that the endpoint has rejected.
    pub(super) async fn send(&mut self, batch: &Batch) -> Result<u64, Refused> {
        match self {
            Client::Grpc(grpc) => grpc.send(batch).await,
            Client::Http(http) => http.send(batch).await,
        }
    }
}

pub(super) struct Grpc {
    channel: Channel,
    headers: MetadataMap,
    is_compressed: bool,
}

/// The path for spans. Their request isn't the generated message: it is written as bytes.
const TRACE_SERVICE: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// A client of one of the other two services, which have two different types.
macro_rules! client {
    ($service:ident, $grpc:expr) => {{
        let client = $service::new($grpc.channel.clone());
        match $grpc.is_compressed {
            true => client.send_compressed(CompressionEncoding::Gzip),
            false => client,
        }
    }};
}

impl Grpc {
    fn new(endpoint: &Endpoint) -> Result<Grpc, ClientError> {
        let channel = Channel::from_shared(endpoint.url.clone());
        let mut channel = channel.map_err(ClientError::Url)?;
        if endpoint.has_tls() {
            let tls = match endpoint.authorities.is_empty() {
                true => ClientTlsConfig::new().with_native_roots(),
                false => ClientTlsConfig::new().trust_anchors(anchors(&endpoint.authorities)),
            };
            let secured = channel.tls_config(tls);
            channel = secured.map_err(ClientError::Tls)?;
        }
        Ok(Grpc {
            channel: channel.connect_timeout(CONNECT_TIMEOUT).connect_lazy(),
            headers: MetadataMap::from_headers(endpoint.headers.map().clone()),
            is_compressed: endpoint.is_compressed,
        })
    }

    async fn send(&mut self, batch: &Batch) -> Result<u64, Refused> {
        match batch {
            Batch::Spans(request, _) => {
                let mut client = tonic::client::Grpc::new(self.channel.clone());
                if self.is_compressed {
                    client = client.send_compressed(CompressionEncoding::Gzip);
                }
                let ready = client.ready().await;
                ready.map_err(|error| Refused::for_now(because(&error)))?;
                let codec = ProstCodec::<TracesRequest, ExportTraceServiceResponse>::default();
                let path = PathAndQuery::from_static(TRACE_SERVICE);
                let answer = client.unary(self.request(request), path, codec).await?;
                Ok(rejected_spans(answer.get_ref()))
            }
            Batch::Lines(request, _) => {
                let mut client = client!(LogsServiceClient, self);
                let answer = client.export(self.request(request)).await?;
                Ok(rejected_lines(answer.get_ref()))
            }
            Batch::Metrics(request) => {
                let mut client = client!(MetricsServiceClient, self);
                let answer = client.export(self.request(request)).await?;
                Ok(rejected_points(answer.get_ref()))
            }
        }
    }

    fn request<M: Clone>(&self, message: &M) -> tonic::Request<M> {
        let mut request = tonic::Request::new(message.clone());
        request.metadata_mut().clone_from(&self.headers);
        request
    }
}

fn anchors(
    authorities: &[CertificateDer<'static>],
) -> Vec<rustls::pki_types::TrustAnchor<'static>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities.iter().cloned());
    roots.roots
}

pub(super) struct Http {
    client: reqwest::Client,
    url: String,
    is_compressed: bool,
}

impl Http {
    fn new(endpoint: &Endpoint) -> Result<Http, ClientError> {
        // Requests only go to the operator's address.
        let mut client = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .default_headers(endpoint.headers.map().clone());
        if !endpoint.authorities.is_empty() {
            let authorities = endpoint.authorities.iter();
            let authorities: Result<Vec<_>, _> = authorities
                .map(|it| reqwest::Certificate::from_der(it))
                .collect();
            let authorities = authorities.map_err(ClientError::Http)?;
            client = client.tls_certs_only(authorities);
        }
        Ok(Http {
            client: client.build().map_err(ClientError::Http)?,
            url: endpoint.url.clone(),
            is_compressed: endpoint.is_compressed,
        })
    }

    async fn send(&mut self, batch: &Batch) -> Result<u64, Refused> {
        match batch {
            Batch::Spans(request, _) => {
                let answer = self.post("v1/traces", request).await?;
                Ok(rejected_spans(&answer))
            }
            Batch::Lines(request, _) => {
                let answer = self.post("v1/logs", request).await?;
                Ok(rejected_lines(&answer))
            }
            Batch::Metrics(request) => {
                let answer = self.post("v1/metrics", request).await?;
                Ok(rejected_points(&answer))
            }
        }
    }

    async fn post<A: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
    ) -> Result<A, Refused> {
        let unreachable = |error: reqwest::Error| Refused::for_now(because(&error.without_url()));
        let mut body = request.encode_to_vec();
        let mut post = self.client.post(format!("{}/{path}", self.url));
        post = post.header("content-type", "application/x-protobuf");
        if self.is_compressed {
            body = compress(&body).map_err(|error| Refused::for_now(because(&error)))?;
            post = post.header("content-encoding", "gzip");
        }
        let mut answer = post.body(body).send().await.map_err(unreachable)?;
        let status = answer.status();
        if !status.is_success() {
            let may_succeed = matches!(status.as_u16(), 429 | 502 | 503 | 504);
            let after = answer.headers().get("retry-after").filter(|_| may_succeed);
            let after = after.and_then(|after| after.to_str().ok());
            return Err(Refused {
                is_final: !may_succeed,
                why: format!("it answers {status}"),
                retry_after: after.and_then(|after| retry_after(after, SystemTime::now())),
            });
        }
        let mut body = Vec::new();
        loop {
            match answer.chunk().await.map_err(unreachable)? {
                Some(chunk) if body.len() + chunk.len() <= MAX_ANSWER_BYTES => {
                    body.extend_from_slice(&chunk);
                }
                // No valid answer to an accepted request is that long.
                Some(_too_much) => return Ok(A::default()),
                None => break,
            }
        }
        // The request was accepted, whatever else the answer says.
        Ok(A::decode(&*body).unwrap_or_default())
    }
}

fn compress(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(body)?;
    gzip.finish()
}

fn rejected_spans(answer: &ExportTraceServiceResponse) -> u64 {
    let partial = answer.partial_success.as_ref();
    partial.map_or(0, |partial| partial.rejected_spans.max(0) as u64)
}

fn rejected_lines(answer: &ExportLogsServiceResponse) -> u64 {
    let partial = answer.partial_success.as_ref();
    partial.map_or(0, |partial| partial.rejected_log_records.max(0) as u64)
}

/// A snapshot is counted as a whole: rejected only if all of its points are.
fn rejected_points(answer: &ExportMetricsServiceResponse) -> u64 {
    let partial = answer.partial_success.as_ref();
    partial.map_or(0, |partial| u64::from(partial.rejected_data_points > 0))
}
