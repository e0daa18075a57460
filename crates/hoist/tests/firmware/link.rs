//! A way to a controller that gets stuck in the middle of an answer, until it is cut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;

/// A loopback port that leads to another one, for as long as the process lives.
pub(crate) struct Link {
    port: u16,
    stuck: Receiver<()>,
    stuck_connections: Arc<Mutex<Vec<TcpStream>>>,
}

/// The settings that the threads of one connection share.
#[derive(Clone)]
struct Bounds {
    longest: usize,
    stuck: Sender<()>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Link {
    /// Answers get stuck when they are longer than this.
    pub(crate) fn start(target: u16, longest: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let port = listener.local_addr().expect("bound").port();
        let (sender, stuck) = channel();
        let connections = Arc::default();
        let bounds = Bounds { longest, stuck: sender, connections: Arc::clone(&connections) };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // Without a server the client sees its connection close.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", target)) {
                    let _ = connect(&client, &server, &bounds);
                }
            }
        });
        Self { port, stuck, stuck_connections: connections }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn wait_until_stuck(&self, within: Duration) {
        self.stuck.recv_timeout(within).expect("an answer is long enough");
    }

    /// Closes the stuck connections.
    pub(crate) fn cut(&self) {
        let mut stuck = self.stuck_connections.lock();
        for connection in stuck.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn connect(client: &TcpStream, server: &TcpStream, bounds: &Bounds) -> std::io::Result<()> {
    let mut from_client = client.try_clone()?;
    let mut to_server = server.try_clone()?;
    let mut from_server = server.try_clone()?;
    let mut to_client = client.try_clone()?;
    let bounds = bounds.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    std::thread::spawn(move || {
        let mut passed = 0;
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from_server.read(&mut buffer) {
            passed += count;
            if passed > bounds.longest {
                let mut stuck = bounds.connections.lock();
                stuck.push(to_client);
                drop(stuck);
                let _ = bounds.stuck.send(());
                return;
            }
            if to_client.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
    Ok(())
}
