//! A gRPC server that knows one thing: how its services are (grpc.health.v1.Health).

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bytes::Bytes;
use h2::server::{self, SendResponse};
use http::{HeaderMap, Request, Response};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

pub const SERVING: u8 = 1;
pub const NOT_SERVING: u8 = 2;

pub struct GrpcServer {
    address: SocketAddr,
    status: Arc<AtomicU8>,
    asked: Arc<Mutex<Vec<String>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl GrpcServer {
    /// It serves one service by this name, besides the whole.
    pub fn start(service: &'static str) -> GrpcServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket's option");
        let address = listener.local_addr().expect("a bound listener");
        let (status, asked) = (Arc::new(AtomicU8::new(SERVING)), Arc::new(Mutex::new(Vec::new())));
        let (stop, stopped) = oneshot::channel();
        let (now, noted) = (Arc::clone(&status), Arc::clone(&asked));
        let serve = move || {
            let runtime = Builder::new_current_thread().enable_io().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let accept = async {
                    while let Ok((socket, _)) = listener.accept().await {
                        tokio::spawn(connection(socket, service, Arc::clone(&now), Arc::clone(&noted)));
                    }
                };
                tokio::select! { () = accept => {}, _ = stopped => {} }
            });
        };
        GrpcServer { address, status, asked, stop: Some(stop), thread: Some(std::thread::spawn(serve)) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it says of itself from now on.
    pub fn say(&self, status: u8) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// Authority, path and service of every question.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("nobody panics with it").clone()
    }
}

impl Drop for GrpcServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn connection(
    socket: tokio::net::TcpStream,
    service: &'static str,
    status: Arc<AtomicU8>,
    asked: Arc<Mutex<Vec<String>>>,
) {
    let Ok(mut requests) = server::handshake(socket).await else { return };
    while let Some(Ok((request, answer))) = requests.accept().await {
        tokio::spawn(serve(request, answer, service, Arc::clone(&status), Arc::clone(&asked)));
    }
}

async fn serve(
    request: Request<h2::RecvStream>,
    mut answer: SendResponse<Bytes>,
    service: &'static str,
    status: Arc<AtomicU8>,
    asked: Arc<Mutex<Vec<String>>>,
) {
    let uri = request.uri().clone();
    let mut body = request.into_body();
    let mut message = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        message.extend_from_slice(&data);
    }
    // The frame's five bytes, then the field's key and its length.
    let name = message.get(7..).map(String::from_utf8_lossy).unwrap_or_default().into_owned();
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    asked.lock().expect("nobody panics with it").push(format!("{authority}{} {name}", uri.path()));
    let head = Response::builder().header("content-type", "application/grpc");
    let mut trailers = HeaderMap::new();
    if !name.is_empty() && name != service {
        // NOT_FOUND, and nothing but that.
        let head = head.header("grpc-status", "5").body(()).expect("a head");
        let _ = answer.send_response(head, true);
        return;
    }
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    let Ok(mut stream) = answer.send_response(head.body(()).expect("a head"), false) else { return };
    let _ = stream.send_data(vec![0, 0, 0, 0, 2, 8, status.load(Ordering::SeqCst)].into(), false);
    let _ = stream.send_trailers(trailers);
}
