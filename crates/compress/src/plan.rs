//! A response of a route with compression, from its head to what is done with it.

use std::rc::Rc;

use propylon_config::{Compress, Encoding};
use propylon_http::h1::ResponseBody;

use crate::encoder::Kind;
use crate::encoders::{Encoders, Lease};
use crate::judge::{Answered, Asked, Skip, Verdict, judge};
use crate::rewrite::{Rewrite, varies};

/// Plan for a response.
pub struct Plan {
    pub rewrite: Rewrite,
    /// Encoder of the body; none: there is no body, or it goes on as it is.
    pub lease: Option<Lease>,
    /// Reason for which the response is not compressed, where it could be.
    pub skip: Option<Skip>,
}

impl Plan {
    /// The plan for a response with this head; `None`: nothing is changed.
    pub fn of(rules: &Compress, asked: &Asked<'_>, answered: Answered<'_>, encoders: &Rc<Encoders>) -> Option<Plan> {
        Plan::of_known(rules, asked, answered, (encoders, &|_| false))
    }

    /// As [`Plan::of`], where `known` tells of codings for which no encoder is needed.
    pub(crate) fn of_known(
        rules: &Compress,
        asked: &Asked<'_>,
        answered: Answered<'_>,
        (encoders, known): (&Rc<Encoders>, &dyn Fn(Encoding) -> bool),
    ) -> Option<Plan> {
        let encoding = match judge(rules, asked, answered)? {
            Verdict::NotModified { was_compressed } => {
                let rewrite = Rewrite { encoding: None, weakens: was_compressed, varies: varies(answered) };
                return Some(Plan { rewrite, lease: None, skip: None });
            }
            Verdict::Plain(skip) => Err(skip),
            Verdict::Compressed(encoding) => Ok(encoding),
        };
        if let Ok(encoding) = encoding
            && known(encoding)
        {
            let rewrite = Rewrite { encoding: Some(encoding), weakens: true, varies: varies(answered) };
            return Some(Plan { rewrite, lease: None, skip: None });
        }
        let length = if let ResponseBody::Length(length) = answered.head.body { Some(length) } else { None };
        let taken = encoding.and_then(|encoding| encoders.take(Kind::of(encoding, rules), rules, length));
        let varies = varies(answered);
        Some(match taken {
            Err(skip) => {
                let rewrite = Rewrite { encoding: None, weakens: false, varies };
                Plan { rewrite, lease: None, skip: Some(skip) }
            }
            Ok(lease) => {
                let rewrite = Rewrite { encoding: Some(lease.kind.encoding), weakens: true, varies };
                // HEAD needs none.
                let lease = Some(lease).filter(|_| answered.head.body != ResponseBody::None);
                Plan { rewrite, lease, skip: None }
            }
        })
    }

    /// Whether a line on what the response depends on is all that is added, or not even that.
    pub fn is_vary_alone(&self) -> bool {
        self.rewrite.encoding.is_none() && !self.rewrite.weakens
    }
}
