//! lily-nano on the software Metal: the kernel text of a GPU generates what the CPU backend generates.
//!
//! `cargo test -p soft-metal --test nano -- --nocapture` prints the text.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[path = "../../lily-engine/tests/nano/mod.rs"]
mod nano;

use lily_engine::backend::Device;
use soft_metal::kernels::{Text, Variant};
use soft_metal::{Order, Settings, SoftMetal};

fn soft(order: Order) -> Box<dyn Device> {
    running(Text::Metal, order)
}

fn running(text: Text, order: Order) -> Box<dyn Device> {
    let variant = Variant { text, ..Variant::PLAIN };
    Box::new(SoftMetal { variant, settings: Settings { order, ..Settings::default() }, shuffle: Some(5) })
}

#[test]
fn lily_nano_answers_as_on_the_cpu() {
    nano::answers_as_on_the_cpu(soft(Order::Random(3)));
}

#[test]
fn lily_nano_draws_as_on_the_cpu() {
    nano::draws_as_on_the_cpu(soft(Order::Forward));
}

#[test]
fn lily_nano_agrees_with_the_cpu_at_every_position() {
    nano::agrees_with_the_cpu_at_every_position(soft(Order::Reverse));
}

#[test]
fn lily_nano_reuses_the_turns_before() {
    nano::reuses_the_turns_before(soft(Order::Random(4)));
}

#[test]
fn guesses_change_nothing() {
    nano::guesses_change_nothing(soft(Order::Random(6)), 6, &[2]);
}

#[test]
fn sessions_together_are_as_alone() {
    nano::sessions_together_are_as_alone(soft(Order::Random(8)), 3, 3);
}

mod with_instructions_of_nvidia {
    use super::*;

    #[test]
    fn lily_nano_answers_as_on_the_cpu() {
        nano::answers_as_on_the_cpu(running(Text::Nvidia, Order::Random(2)));
    }

    #[test]
    fn guesses_change_nothing() {
        nano::guesses_change_nothing(running(Text::Nvidia, Order::Random(6)), 6, &[2]);
    }

    #[test]
    fn sessions_together_are_as_alone() {
        nano::sessions_together_are_as_alone(running(Text::Nvidia, Order::Random(8)), 3, 3);
    }
}
