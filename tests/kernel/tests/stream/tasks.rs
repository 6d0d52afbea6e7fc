use std::net::Shutdown;
use std::time::Duration;

use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_rdmacm::stream::{AsyncIoReactor, AsyncStream, TokioReactor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{pair, pattern};

type TokioStream = AsyncStream<TokioReactor>;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub(crate) fn tokio_tasks_copy_in_both_directions() {
    nothing_leaks(|| {
        let (a, b) = pair();
        runtime().block_on(async {
            let (a, mut b) = (TokioStream::new(a).unwrap(), TokioStream::new(b).unwrap());
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

pub(crate) fn async_io_tasks_copy_in_both_directions() {
    use futures_io::{AsyncRead, AsyncWrite};
    use std::future::poll_fn;
    use std::pin::Pin;

    nothing_leaks(|| {
        let (a, b) = pair();
        let mut a = AsyncStream::<AsyncIoReactor>::new(a).unwrap();
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
                        match Pin::new(&mut a).poll_write(cx, &bytes[sent..]) {
                            std::task::Poll::Ready(len) => sent += len.unwrap(),
                            std::task::Poll::Pending => break,
                        }
                    }
                    loop {
                        match Pin::new(&mut a).poll_read(cx, &mut room) {
                            std::task::Poll::Ready(len) => answer.extend(&room[..len.unwrap()]),
                            std::task::Poll::Pending => return std::task::Poll::Pending,
                        }
                        if answer.len() == bytes.len() {
                            return std::task::Poll::Ready(());
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

pub(crate) fn cancelled_read_loses_no_byte() {
    nothing_leaks(|| {
        let (a, b) = pair();
        runtime().block_on(async {
            let (mut a, mut b) = (TokioStream::new(a).unwrap(), TokioStream::new(b).unwrap());
            let bytes = pattern(5000);
            let sent = bytes.clone();
            let writer = tokio::spawn(async move {
                for chunk in sent.chunks(10) {
                    a.write_all(chunk).await.unwrap();
                    tokio::task::yield_now().await;
                }
                a.shutdown().await.unwrap();
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
