//! Age: whether finished jobs slow anything down.

use super::{Order, Plan, Values, arena::Arena};

pub(super) async fn age(_arena: &Arena, _plan: &Plan, _values: &mut Values) -> anyhow::Result<()> {
    let _ = Order::example(1);
    Ok(())
}
