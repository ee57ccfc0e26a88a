//! `propylon cluster simulate`: what changes of a cluster cost at sizes that nobody has in the cellar, and whether
//! flows survive disorder. It asks nobody and needs no engine.

use std::process::ExitCode;
use std::time::Duration;

use propylon_policy::flows::scale::{self, Change, Model, Scale, Table};
use propylon_policy::flows::simulation::{self, Outcome};
use serde_json::{Value, json};

const STEPS: u64 = 1000;

#[derive(clap::Args)]
pub struct Arguments {
    /// Sizes of clusters, in engines
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "4,32,1000,10000",
        value_parser = clap::value_parser!(u16).range(2..=13_000))]
    engines: Vec<u16>,
    /// The beginning of chance: the same seed tells the same stories
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Small clusters in disorder that are run besides, each with a seed of its own
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    disorder: u64,
    /// Load records' period, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    report_period: u64,
    /// Print everything as JSON on standard output
    #[arg(long)]
    json: bool,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    let model = Model { report_period: Duration::from_secs(arguments.report_period), ..Model::default() };
    let scales: Vec<Scale> =
        arguments.engines.iter().map(|engines| scale::simulate(*engines, arguments.seed, &model)).collect();
    let (sum, broken) = disorder(arguments);
    if arguments.json {
        let clusters: Vec<Value> = scales.iter().map(scale_json).collect();
        println!("{}", json!({ "clusters": clusters, "disorder": disorder_json(arguments, &sum, &broken) }));
    } else {
        print!("{}", Table(&scales));
        println!(
            "\n{} clusters in disorder, seeds from {}: {} generations, {} deaths, {} connections, {} packets \
             ({} needed two hops, {} went to the dead); flows broken: {}",
            arguments.disorder,
            arguments.seed,
            sum.generations,
            sum.deaths,
            sum.connections,
            sum.packets,
            sum.second_hops,
            sum.lost,
            broken.len()
        );
    }
    for broken in &broken {
        eprintln!("propylon: a promise of the flow table is broken: {broken}; please report it with the seed");
    }
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn disorder(arguments: &Arguments) -> (Outcome, Vec<String>) {
    let (mut sum, mut broken) = (Outcome::default(), Vec::new());
    for number in 0..arguments.disorder {
        match simulation::run(arguments.seed.wrapping_add(number), STEPS, None) {
            Ok(outcome) => sum += outcome,
            Err(one) => broken.push(one.to_string()),
        }
    }
    (sum, broken)
}

fn scale_json(scale: &Scale) -> Value {
    json!({
        "engines": scale.engines,
        "buckets": scale.buckets,
        "unevenness": scale.unevenness,
        "table_bytes": scale.table_bytes,
        "value_bytes": scale.value_bytes,
        "value_fits": scale.value_fits,
        "generation_seconds": scale.round.as_secs_f64(),
        "steady": {
            "puts_per_second": scale.steady.puts_per_second,
            "events_per_second_if_all_watch": scale.steady.events_per_second_all,
            "events_per_second_if_the_leader_does": scale.steady.events_per_second_leader,
            "sent_bytes_per_second_if_all_watch": scale.steady.sent_bytes_per_second_all,
            "sent_bytes_per_second_if_the_leader_does": scale.steady.sent_bytes_per_second_leader,
        },
        "changes": scale.changes.iter().map(change_json).collect::<Vec<_>>(),
        "upgrade": {
            "batches": scale.upgrade.batches,
            "buckets_moved": scale.upgrade.moved,
            "generations": scale.upgrade.generations,
            "seconds": scale.upgrade.time.as_secs_f64(),
            "sent_bytes": scale.upgrade.sent_bytes,
        },
        "rack": {
            "engines": scale.rack.engines,
            "connections_lost_share": scale.rack.flows_lost_share,
            "stall_seconds": scale.rack.stall.as_secs_f64(),
            "load_factor": scale.rack.load_factor,
            "buckets_moved": scale.rack.moved,
            "generations": scale.rack.generations,
        },
    })
}

fn change_json(change: &Change) -> Value {
    json!({
        "what": change.what,
        "buckets_moved": change.moved,
        "buckets_moved_min": change.moved_min,
        "generations": change.generations,
        "agreed_seconds": change.agreed.as_secs_f64(),
        "sent_bytes": change.sent_bytes,
        "agreed_seconds_by_differences": change.agreed_by_differences.as_secs_f64(),
        "sent_bytes_by_differences": change.sent_bytes_by_differences,
    })
}

fn disorder_json(arguments: &Arguments, sum: &Outcome, broken: &[String]) -> Value {
    json!({
        "clusters": arguments.disorder,
        "seed": arguments.seed,
        "generations": sum.generations,
        "deaths": sum.deaths,
        "connections": sum.connections,
        "packets": sum.packets,
        "second_hops": sum.second_hops,
        "lost": sum.lost,
        "broken": broken,
    })
}
