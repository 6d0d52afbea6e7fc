//! The program that `cargo xtask soak` runs in a guest.

use std::time::{Duration, Instant};

use anyhow::Result;
use bareverbs_soak::{attempts, connections, objects, random, soft, traffic};
use bareverbs_test_support::resources::nothing_leaks;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Scale and endurance on the RDMA device")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Random verbs from a seed, compared with a model.
    Random {
        /// Duration in seconds.
        #[arg(long, default_value_t = 600)]
        seconds: u64,
        /// The seed of all verbs.
        #[arg(long)]
        seed: u64,
        /// Only this iteration.
        #[arg(long)]
        iteration: Option<u64>,
        /// Only the first verbs of it.
        #[arg(long, requires = "iteration")]
        ops: Option<usize>,
    },
    /// Random verbs on soft devices, compared with the same model: virtual time and faults, without a
    /// lab.
    Soft {
        /// The first seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// The seed after the last one.
        #[arg(long, default_value_t = 10_000)]
        to: u64,
        /// Verbs of a seed.
        #[arg(long, default_value_t = soft::OPS)]
        ops: usize,
    },
    /// 1,000 queue pairs on one shared receive queue and one completion queue, all sending.
    Traffic {
        /// Total number of messages.
        #[arg(long, default_value_t = 1_000_000)]
        messages: u64,
    },
    /// Connections by IP address, made and ended one after the other.
    Connections {
        /// Their number.
        #[arg(long, default_value_t = 10_000)]
        rounds: usize,
    },
    /// Random connects, answers, rejections, ends and kills from a seed, compared with a model.
    Attempts {
        /// Duration in seconds.
        #[arg(long, default_value_t = 120)]
        seconds: u64,
        /// The seed of all actions.
        #[arg(long)]
        seed: u64,
    },
    /// The cost of objects by their number: a line for each step, with the microseconds to create
    /// and to free one.
    Objects {
        /// Memory regions.
        #[arg(long, default_value_t = 100_000)]
        regions: usize,
        /// Queue pairs.
        #[arg(long, default_value_t = 1_000)]
        queue_pairs: usize,
    },
}

fn main() -> Result<()> {
    match Cli::parse().what {
        What::Random { seconds, seed, iteration, ops } => {
            let time = Duration::from_secs(seconds);
            println!("{}", random::run(&random::Plan { seed, time, iteration, ops })?);
        }
        What::Soft { from, to, ops } => {
            let begin = Instant::now();
            println!("{}", soft::run(from..to, ops)?);
            println!("seeds {from}..{to} in {:.1} s", begin.elapsed().as_secs_f64());
        }
        What::Traffic { messages } => {
            let report = nothing_leaks(|| traffic::run(&traffic::Plan::thousand(messages)))?;
            let traffic::Report { qps, messages, bytes, setup, traffic } = report;
            let seconds = traffic.as_secs_f64();
            println!("{qps} queue pairs, connected in {:.1} s", setup.as_secs_f64());
            println!("{messages} messages of {bytes} bytes in order and unharmed in {seconds:.1} s");
            println!("{:.0} messages/s", messages as f64 / seconds);
        }
        What::Connections { rounds } => {
            let connections::Report { rounds, time, growth } = nothing_leaks(|| connections::run(rounds))?;
            let seconds = time.as_secs_f64();
            println!("{rounds} connections in {seconds:.1} s, {:.1} ms each", 1e3 * seconds / rounds as f64);
            println!("the process grew by {} KiB in the last nine tenths", growth / 1024);
        }
        What::Attempts { seconds, seed } => {
            let time = Duration::from_secs(seconds);
            println!("{}", attempts::run(&attempts::Plan { seed, time })?);
        }
        What::Objects { regions, queue_pairs } => {
            print!("{}", nothing_leaks(|| objects::regions(regions))?);
            print!("{}", nothing_leaks(|| objects::queue_pairs(queue_pairs))?);
        }
    }
    Ok(())
}
