use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bareverbs::runtime::{AsyncIo, Tokio};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{InTime, TIMEOUT, kernel_test};
use bareverbs_rdmacm::Error;
use bareverbs_rdmacm::stream::{RdmaStream, StreamError, StreamOptions};
use tokio::io::{AsyncRead as _, AsyncReadExt, AsyncWrite as _, AsyncWriteExt, ReadBuf};

use crate::{any_port, pair_of, pattern};

fn with_tokio() -> StreamOptions {
    StreamOptions::default().runtime(Tokio)
}

/// Both ends of a stream, whose first one is used by tasks of the runtime of the options. The other
/// one is used by threads.
fn pair(options: &StreamOptions) -> (RdmaStream, RdmaStream) {
    pair_of(&StreamOptions::default(), options)
}

/// Both ends of a stream in tasks of tokio.
async fn pair_in_tasks() -> (RdmaStream, RdmaStream) {
    let listener = with_tokio().listen(any_port()).unwrap();
    let addr = listener.local_addr();
    let (connected, accepted) = tokio::join!(with_tokio().connect(addr), listener.accept());
    (connected.unwrap(), accepted.unwrap())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[kernel_test(crate::has_ip)]
fn tokio_tasks_copy_in_both_directions() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (a, mut b) = pair_in_tasks().await;
            let echo = tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(&mut b);
                tokio::io::copy(&mut read, &mut write).await.unwrap();
                write.shutdown().await.unwrap();
            });
            let bytes = pattern(1 << 20);
            let (mut read, mut write) = tokio::io::split(a);
            let sent = bytes.clone();
            let writer = tokio::spawn(async move {
                write.write_all(&sent).await.unwrap();
                write.shutdown().await.unwrap();
            });
            let mut answer = Vec::new();
            let all = tokio::time::timeout(TIMEOUT, read.read_to_end(&mut answer)).await;
            all.expect("in time").unwrap();
            assert!(answer == bytes, "{} bytes", answer.len());
            writer.await.unwrap();
            echo.await.unwrap();
        });
    });
}

#[kernel_test(crate::has_ip)]
fn stream_of_tasks_that_lingers_delivers_its_bytes_when_dropped() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (a, b) = pair(&with_tokio());
            let bytes = pattern(1 << 20);
            let received = std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let mut received = Vec::new();
                    std::io::Read::read_to_end(&mut &b, &mut received).map(|_| received)
                });
                a.set_linger(TIMEOUT);
                std::io::Write::write_all(&mut &a, &bytes).unwrap();
                drop(a);
                reader.join().unwrap().unwrap()
            });
            assert!(received == bytes, "{} bytes", received.len());
        });
    });
}

#[kernel_test(crate::has_ip)]
fn stream_outside_of_a_runtime_is_refused() {
    let addr = crate::listener().1;
    let error = with_tokio().connect(addr).wait().unwrap_err();
    let StreamError::Cm(cause) = &error else { panic!("{error}") };
    assert!(matches!(**cause, Error::Invalid { verb: "attach", .. }), "{error}");
}

#[kernel_test(crate::has_ip)]
fn async_io_tasks_copy_in_both_directions() {
    use futures_io::{AsyncRead, AsyncWrite};
    use std::future::poll_fn;

    nothing_leaks(|| {
        let (mut a, b) = pair(&StreamOptions::default().runtime(AsyncIo));
        let bytes = pattern(200 << 10);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::io::copy(&mut &b, &mut &b).unwrap();
                b.shutdown(Shutdown::Write).unwrap();
            });
            async_io::block_on(async {
                let (mut sent, mut answer) = (0, Vec::<u8>::new());
                let mut room = [0; 4096];
                // Both directions in one task.
                poll_fn(|cx| {
                    while sent < bytes.len() {
                        match AsyncWrite::poll_write(Pin::new(&mut a), cx, &bytes[sent..]) {
                            Poll::Ready(len) => sent += len.unwrap(),
                            Poll::Pending => break,
                        }
                    }
                    loop {
                        match AsyncRead::poll_read(Pin::new(&mut a), cx, &mut room) {
                            Poll::Ready(len) => answer.extend(&room[..len.unwrap()]),
                            Poll::Pending => return Poll::Pending,
                        }
                        if answer.len() == bytes.len() {
                            return Poll::Ready(());
                        }
                    }
                })
                .await;
                assert!(answer == bytes);
                poll_fn(|cx| Pin::new(&mut a).poll_close(cx)).await.unwrap();
            });
        });
    });
}

#[kernel_test(crate::has_ip)]
fn cancelled_read_loses_no_byte() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (mut a, mut b) = pair_in_tasks().await;
            let bytes = pattern(5000);
            let sent = bytes.clone();
            let writer = tokio::spawn(async move {
                for chunk in sent.chunks(10) {
                    a.write_all(chunk).await.unwrap();
                    tokio::task::yield_now().await;
                }
                AsyncWriteExt::shutdown(&mut a).await.unwrap();
                a
            });
            let mut read: Vec<u8> = Vec::new();
            let mut room = [0; 64];
            loop {
                match tokio::time::timeout(Duration::from_micros(50), b.read(&mut room)).await {
                    Err(_) => {}
                    Ok(len) => match len.unwrap() {
                        0 => break,
                        len => read.extend(&room[..len]),
                    },
                }
            }
            assert!(read == bytes, "{} bytes", read.len());
            writer.await.unwrap();
        });
    });
}

/// A task that uses its stream when it is woken.
struct Reenters {
    stream: RdmaStream,
    wakes: Arc<AtomicUsize>,
}

impl Wake for Reenters {
    fn wake(self: Arc<Self>) {
        assert!(self.stream.error().is_none());
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }
}

#[kernel_test(crate::has_ip)]
fn waker_may_use_its_stream() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (mut a, mut b) = pair(&with_tokio());
            let wakes = Arc::<AtomicUsize>::default();
            let waker = Waker::from(Arc::new(Reenters { stream: a.handle(), wakes: Arc::clone(&wakes) }));
            let mut room = [0; 4];
            let mut read = ReadBuf::new(&mut room);
            assert!(Pin::new(&mut a).poll_read(&mut Context::from_waker(&waker), &mut read).is_pending());
            drop(waker);
            std::io::Write::write_all(&mut b, b"wake").unwrap();
            b.sent().in_time().unwrap();
            // The writer finds the completion that the reader waits for.
            let written = Pin::new(&mut a).poll_write(&mut Context::from_waker(Waker::noop()), b"x");
            assert!(matches!(written, Poll::Ready(Ok(1))), "{written:?}");
            assert_eq!(wakes.load(Ordering::Relaxed), 1);
            a.read_exact(&mut room).await.unwrap();
            assert_eq!(&room, b"wake");
        });
    });
}

/// Counts its calls.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[kernel_test(crate::has_ip)]
fn thread_that_handles_completions_wakes_the_task_of_its_own_direction() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (mut a, mut b) = pair(&with_tokio());
            let handle = a.handle();
            let count = Arc::<Count>::default();
            let waker = Waker::from(Arc::clone(&count));
            let mut room = [0; 1];
            let mut read = ReadBuf::new(&mut room);
            assert!(Pin::new(&mut a).poll_read(&mut Context::from_waker(&waker), &mut read).is_pending());
            std::io::Write::write_all(&mut b, b"x").unwrap();
            b.sent().in_time().unwrap();
            while !handle.is_readable().unwrap() {}
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
        });
    });
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the test asked for it");
    }
}

#[kernel_test(crate::has_ip)]
fn panic_of_a_waker_loses_no_byte() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (mut a, mut b) = pair(&with_tokio());
            let handle = a.handle();
            handle.set_read_timeout(Some(TIMEOUT));
            let waker = Waker::from(Arc::new(Panics));
            let mut cx = Context::from_waker(&waker);
            // A task waits for room.
            let bytes = pattern(1 << 20);
            while let Poll::Ready(written) = Pin::new(&mut a).poll_write(&mut cx, &bytes) {
                written.unwrap();
            }
            std::io::Write::write_all(&mut b, b"read once").unwrap();
            b.sent().in_time().unwrap();
            let mut room = [0; 16];
            catch_unwind(AssertUnwindSafe(|| handle.recv(&mut room))).unwrap_err();
            let len = handle.recv(&mut room).unwrap();
            assert_eq!(&room[..len], b"read once");
        });
    });
}

#[kernel_test(crate::has_ip)]
fn tokio_tasks_connect_and_accept() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let listener = with_tokio().listen(any_port()).unwrap();
            let addr = listener.local_addr();
            // A wait that is cancelled takes no stream.
            tokio::time::timeout(Duration::from_millis(10), listener.accept()).await.unwrap_err();
            let clients = (0..3u8).map(|number| {
                tokio::spawn(async move {
                    let mut stream = with_tokio().connect(addr).await.unwrap();
                    stream.write_all(&[number]).await.unwrap();
                    AsyncWriteExt::shutdown(&mut stream).await.unwrap();
                    let mut answer = Vec::new();
                    stream.read_to_end(&mut answer).await.unwrap();
                    assert_eq!(answer, [number]);
                })
            });
            let clients: Vec<_> = clients.collect();
            for _ in 0..3 {
                let mut stream = tokio::time::timeout(TIMEOUT, listener.accept()).await.unwrap().unwrap();
                let number = stream.read_u8().await.unwrap();
                stream.write_all(&[number]).await.unwrap();
                AsyncWriteExt::shutdown(&mut stream).await.unwrap();
            }
            for client in clients {
                client.await.unwrap();
            }
        });
    });
}

#[kernel_test(crate::has_ip)]
fn async_io_tasks_connect_and_accept() {
    use futures_io::{AsyncRead, AsyncWrite};
    use std::future::poll_fn;

    nothing_leaks(|| {
        async_io::block_on(async {
            let options = StreamOptions::default().runtime(AsyncIo);
            let listener = options.listen(any_port()).unwrap();
            let addr = listener.local_addr();
            let (mut accept, mut connect) = (listener.accept(), options.connect(addr));
            let (mut accepted, mut connected) = (None, None);
            // Both ends in one task.
            poll_fn(|cx| {
                if accepted.is_none()
                    && let Poll::Ready(stream) = Pin::new(&mut accept).poll(cx)
                {
                    accepted = Some(stream.unwrap());
                }
                if connected.is_none()
                    && let Poll::Ready(stream) = Pin::new(&mut connect).poll(cx)
                {
                    connected = Some(stream.unwrap());
                }
                if accepted.is_some() && connected.is_some() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let (mut a, mut b) = (accepted.unwrap(), connected.unwrap());
            let sent = poll_fn(|cx| AsyncWrite::poll_write(Pin::new(&mut a), cx, b"hello")).await.unwrap();
            assert_eq!(sent, 5);
            let mut read = [0; 16];
            let len = poll_fn(|cx| AsyncRead::poll_read(Pin::new(&mut b), cx, &mut read)).await.unwrap();
            assert_eq!(&read[..len], b"hello");
        });
    });
}

#[kernel_test(crate::has_ip)]
fn http2_server_of_hyper_runs_over_streams() {
    use crate::http2::{fetch, serve};

    nothing_leaks(|| {
        runtime().block_on(async {
            let listener = with_tokio().listen(any_port()).unwrap();
            let addr = listener.local_addr();
            let server = tokio::spawn(async move { serve(&listener).await.map(drop) });
            // Several requests on a connection, one of them beyond the stream's buffers.
            let requests = [("/one", Vec::new()), ("/two", pattern(1 << 20)), ("/three", pattern(5000))];
            let fetched = tokio::time::timeout(TIMEOUT, fetch(addr, &requests)).await.expect("in time");
            for ((path, body), answer) in requests.iter().zip(fetched.unwrap()) {
                let head = format!("POST {path}\n");
                assert!(answer.starts_with(head.as_bytes()), "{path}");
                assert!(answer[head.len()..] == body[..], "{} bytes of {path}", answer.len());
            }
            server.abort();
            assert!(server.await.unwrap_err().is_cancelled());
        });
    });
}
