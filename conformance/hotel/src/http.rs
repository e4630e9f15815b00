//! A connection to a frontend: one request at a time, kept for the next.

use axum::body::{Body, to_bytes};
use hyper::Request;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The largest answer that is read.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// One that was opened.
#[derive(Debug)]
pub struct Connection {
    host: String,
    sender: SendRequest<Body>,
}

impl Connection {
    /// Connects to `host:port`, within a runtime of tokio.
    ///
    /// # Errors
    /// A sentence that says why not.
    pub async fn open(host: &str) -> Result<Connection, String> {
        let failed = |error: &dyn std::fmt::Display| format!("can't connect to {host}: {error}");
        let stream = TcpStream::connect(host).await.map_err(|e| failed(&e))?;
        stream.set_nodelay(true).map_err(|e| failed(&e))?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| failed(&e))?;
        // Its errors are those of the requests on it.
        tokio::spawn(connection);
        let host = host.to_owned();
        Ok(Connection { host, sender })
    }

    /// The status and the content of a path.
    ///
    /// # Errors
    /// A sentence, if there is no whole answer; the connection is of no use then.
    pub async fn get(&mut self, path: &str) -> Result<(u16, Vec<u8>), String> {
        let request = Request::get(path).header("host", &*self.host);
        let request = request.body(Body::empty());
        let request = request.map_err(|error| format!("{path} is no request: {error}"))?;
        let failed = |error: &dyn std::fmt::Display| format!("{path}: {error}");
        self.sender.ready().await.map_err(|e| failed(&e))?;
        let answer = self.sender.send_request(request).await;
        let (head, body) = answer.map_err(|e| failed(&e))?.into_parts();
        let content = to_bytes(Body::new(body), MAX_ANSWER_BYTES).await;
        let content = content.map_err(|e| failed(&e))?;
        Ok((head.status.as_u16(), content.to_vec()))
    }
}
