//! Answers of a configuration, with what is in the files that it names. All cores share them.

use std::collections::HashMap;
use std::sync::Arc;

use propylon_config::{Action, Config, ErrorFormat, Respond};

use crate::bodies::{Bodies, Body};
use crate::errors::{self, Error, ErrorBody, Errors, Page};

/// Answers of a configuration.
#[derive(Default)]
pub struct Answers {
    /// Errors of listeners, by the listener's name.
    listeners: HashMap<String, Errors>,
    routes: Vec<Errors>,
    /// Files of fixed answers, by route.
    fixed: Vec<Option<Arc<Body>>>,
}

/// Listener and route that an answer is given at.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// Name of the listener.
    pub listener: &'a str,
    /// Index of the route; none before one is found.
    pub route: Option<usize>,
}

impl Answers {
    /// Files that are not there have no part in answers: whoever has read them has said so.
    pub fn new(config: &Config, bodies: &Bodies) -> Answers {
        let listeners =
            config.listeners.iter().filter(|listener| listener.errors != propylon_config::Errors::default());
        let fixed = config.routes.iter().map(|route| match &route.action {
            Action::Respond(Respond { body_file: Some(path), .. }) => bodies.get(path).cloned(),
            _ => None,
        });
        Answers {
            listeners: listeners.map(|each| (each.name.clone(), Errors::of(&each.errors, bodies))).collect(),
            routes: config.routes.iter().map(|route| Errors::of(&route.steps.errors, bodies)).collect(),
            fixed: fixed.collect(),
        }
    }

    /// The file of a route's fixed answer.
    pub fn fixed(&self, route: usize) -> Option<&Arc<Body>> {
        self.fixed.get(route)?.as_ref()
    }

    /// An error as its client gets it, by the values of the request's Accept; `None`: as a line of text.
    pub fn tell(&self, place: Place<'_>, error: &Error<'_>, accept: &[&[u8]]) -> Option<ErrorBody> {
        let page = self.page(place, error.status).and_then(|page| page.tell(error, accept));
        let format = || self.at(place).find_map(|errors| errors.format).unwrap_or(ErrorFormat::Text);
        page.or_else(|| errors::tell_plainly(format(), error, accept))
    }

    /// Whether something is said of the form of errors with this status.
    pub fn has_form(&self, place: Place<'_>, status: u16) -> bool {
        self.at(place).any(|errors| errors.format.is_some() || errors.page(status).is_some())
    }

    /// Whether a page takes the place of a server's response with this status.
    pub fn intercepts(&self, place: Place<'_>, status: u16) -> bool {
        let is_on = || self.at(place).find_map(|errors| errors.intercepts).unwrap_or(false);
        status >= 400 && is_on() && self.page(place, status).is_some()
    }

    fn page(&self, place: Place<'_>, status: u16) -> Option<&Page> {
        self.at(place).find_map(|errors| errors.page(status))
    }

    /// The route's, then the listener's.
    fn at(&self, place: Place<'_>) -> impl Iterator<Item = &Errors> {
        let route = place.route.and_then(|route| self.routes.get(route));
        route.into_iter().chain(self.listeners.get(place.listener))
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::Source;

    use super::*;

    fn answers(text: &str) -> Answers {
        let source = Source { name: "a.toml".into(), base: "".into(), text: text.into() };
        let config = propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0;
        let read = |path: &std::path::Path| (path.to_owned(), Arc::new(Body::new(path.display().to_string().into())));
        Answers::new(&config, &config.body_files().into_iter().map(|(path, _)| read(path)).collect())
    }

    #[test]
    fn the_routes_page_goes_before_the_listeners_and_a_status_before_its_class() {
        let answers = answers(
            "[listener.web]\nbind = \"127.0.0.1:0\"\nerror_format = \"json\"\n\
             error_pages = { 404 = \"l404.html\", 5xx = { html = \"l5.html\", json = \"l5.json\" } }\n\
             [backend.a]\nservers = [\"127.0.0.1:1\"]\n\
             [[route]]\nerror_pages = { 4xx = \"r4.txt\", 503 = \"r503.html\" }\nintercept_errors = true\nbackend = \"a\"\n",
        );
        let told = |route: Option<usize>, status: u16, accept: &'static str| {
            let place = Place { listener: "web", route };
            let error = Error { status, detail: "x", id: None };
            let told = answers.tell(place, &error, &[accept.as_bytes()]).expect("a page");
            (String::from_utf8(told.body).expect("UTF-8"), told.varies)
        };
        assert_eq!(told(None, 404, "*/*"), ("l404.html".into(), false));
        assert_eq!(told(Some(0), 404, "*/*"), ("r4.txt".into(), false));
        assert_eq!(told(Some(0), 503, "application/json"), ("r503.html".into(), false));
        assert_eq!(told(Some(0), 502, "application/json"), ("l5.json".into(), true));
        assert_eq!(told(Some(0), 502, "text/html"), ("l5.html".into(), true));
        let (problem, varies) = told(None, 400, "text/html");
        assert!(problem.starts_with("{\"type\":\"about:blank\",\"title\":\"Bad Request\"") && !varies, "{problem}");
        let place = |route| Place { listener: "web", route };
        assert!(answers.intercepts(place(Some(0)), 502) && !answers.intercepts(place(None), 502));
        assert!(!answers.intercepts(place(Some(0)), 399) && !answers.intercepts(place(Some(0)), 200));
        let is_said = |route, status| answers.has_form(place(route), status);
        assert!(is_said(None, 200) && is_said(Some(0), 400), "a listener's format is of every status");
        let other = Place { listener: "other", route: Some(0) };
        assert!(answers.has_form(other, 404) && !answers.has_form(other, 502) && answers.intercepts(other, 400));
        let other = Place { listener: "other", route: None };
        assert!(!answers.has_form(other, 404));
        let error = Error { status: 404, detail: "x", id: None };
        assert_eq!(answers.tell(other, &error, &[]), None);
    }
}
