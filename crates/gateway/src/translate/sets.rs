//! ListenerSets: listeners that others than its owner add to a Gateway.

use serde_json::{Value, json};

use super::attach::is_let_in;
use super::gateways::{GatewayPlan, Gateways, SetPlan};
use super::report::{change, listener_status};
use crate::conditions::{Condition, Trouble, written};
use crate::resources::{GROUP, Gateway};
use crate::settings::StatusChange;
use crate::world::{Kind, World};

/// ListenerSets with this Gateway as their parent, by the order of precedence.
pub fn of<'w>(world: &'w World, gateway: &Gateway) -> Vec<SetPlan<'w>> {
    let key = gateway.metadata.key();
    let own = world.listener_sets.values().filter(|set| {
        let parent = &set.spec.parent_ref;
        parent.is(GROUP, "Gateway", (GROUP, "Gateway")) && parent.key(&set.metadata.namespace) == key
    });
    let plans = own.map(|object| {
        let namespaces = (key.namespace.as_str(), object.metadata.namespace.as_str());
        let is_allowed = is_let_in(world, &gateway.spec.allowed_listeners.namespaces, "None", namespaces);
        let what = "the Gateway's allowedListeners let none of this namespace in";
        SetPlan { object, refused: (!is_allowed).then(|| Trouble::new("NotAllowed", what)) }
    });
    let mut plans: Vec<SetPlan<'w>> = plans.collect();
    plans.sort_by_key(|plan| plan.object.metadata.precedence());
    plans
}

/// ListenerSets with a listener that is served.
pub fn attached(plan: &GatewayPlan<'_>) -> usize {
    let is_attached = |place: &usize| plan.listeners_of(Some(*place)).any(|listener| listener.is_usable());
    (0..plan.sets.len()).filter(is_attached).count()
}

pub fn statuses(gateways: &Gateways<'_>, refused: Option<&str>, now: &str) -> Vec<StatusChange> {
    let all = gateways.all.iter().flat_map(|plan| (0..plan.sets.len()).map(move |place| (plan, place)));
    let changes = all.filter_map(|(plan, place)| {
        let set = plan.sets[place].object;
        let listeners = plan.listeners_of(Some(place)).map(|listener| listener_status(plan, listener, refused, now));
        let conditions = conditions(plan, place, refused);
        let status = json!({
            "conditions": written(&conditions, &set.status["conditions"], set.metadata.generation, now),
            "listeners": listeners.collect::<Vec<Value>>(),
        });
        let before = (set.metadata.resource_version.as_str(), &set.status);
        change(Kind::ListenerSet, &set.metadata.key(), before, status)
    });
    changes.collect()
}

fn conditions(plan: &GatewayPlan<'_>, place: usize, refused: Option<&str>) -> [Condition; 2] {
    let listeners = || plan.listeners_of(Some(place));
    let bad: Vec<&str> =
        listeners().filter(|listener| !listener.is_usable()).map(|listener| listener.spec.name.as_str()).collect();
    let what = format!("listeners that are not served, with their reasons below: {}", bad.join(", "));
    let trouble = match (&plan.sets[place].refused, &plan.accepted) {
        (Some(trouble), _) => Some(trouble.clone()),
        (None, Some(_)) => Some(Trouble::new("ParentNotAccepted", "the Gateway is not accepted")),
        (None, None) => (bad.len() == listeners().count()).then(|| Trouble::new("ListenersNotValid", what.clone())),
    };
    let accepted = match &trouble {
        None if !bad.is_empty() => Condition::new("Accepted", true, "ListenersNotValid", what),
        trouble => Condition::unless("Accepted", "Accepted", trouble.as_ref()),
    };
    let programmed = match (trouble, refused) {
        (Some(trouble), _) => Some(trouble),
        (None, _) if plan.address.is_none() => Some(Trouble::new("ParentNotProgrammed", "the Gateway has no address")),
        (None, Some(why)) => Some(Trouble::new("Pending", why)),
        (None, None) => None,
    };
    [accepted, Condition::unless("Programmed", "Programmed", programmed.as_ref())]
}
