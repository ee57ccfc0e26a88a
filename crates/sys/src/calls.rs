//! Filters of system calls (seccomp), made of lists of calls and what their arguments have to be.

use std::collections::BTreeMap;
use std::fmt;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Operator, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

/// System calls that a process lets itself make: those that are allowed, the rest with EPERM.
///
/// Failing, and not ending, is the rule because a C library may try something new and go on without it; the process's end
/// would be an outage.
#[derive(Clone, Debug, Default)]
pub struct CallFilter {
    /// Conditions by the call's number; without any it is allowed with any arguments, else with each set that holds.
    allowed: BTreeMap<i64, Vec<Vec<Argument>>>,
    /// End the process: what somebody does who has got in.
    deadly: Vec<i64>,
    /// Fail with ENOSYS, so that a C library asks by another call.
    absent: Vec<i64>,
}

/// Condition on an argument of a call, by its place from 0.
#[derive(Clone, Copy, Debug)]
pub enum Argument {
    Is(u8, u64),
    /// A number that a C library gives as an int, whatever is above it.
    IsInt(u8, i32),
    /// `argument & mask == value`
    Masked {
        argument: u8,
        mask: i32,
        value: i32,
    },
}

/// Which threads a filter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confined {
    /// The calling one and those that it starts.
    ThisThread,
    AllThreads,
}

/// Why there is no filter.
#[derive(Debug)]
pub enum CallFilterError {
    /// No filter is known for this processor.
    UnknownProcessor,
    Kernel(seccompiler::Error),
}

impl CallFilter {
    /// More calls, with any arguments.
    #[must_use]
    pub fn allow(mut self, calls: &[i64]) -> CallFilter {
        self.allowed.extend(calls.iter().map(|call| (*call, Vec::new())));
        self
    }

    /// A call with the arguments of any of these sets alone.
    #[must_use]
    pub fn allow_with(mut self, call: i64, any_of: impl IntoIterator<Item = Vec<Argument>>) -> CallFilter {
        self.allowed.insert(call, any_of.into_iter().collect());
        self
    }

    /// More calls that end the process.
    #[must_use]
    pub fn kill(mut self, calls: &[i64]) -> CallFilter {
        self.deadly.extend(calls);
        self
    }

    /// More calls that this kernel is not to have.
    #[must_use]
    pub fn hide(mut self, calls: &[i64]) -> CallFilter {
        self.absent.extend(calls);
        self
    }

    /// Calls that are allowed and deadly at once, which nobody can mean.
    pub fn contradictions(&self) -> Vec<i64> {
        self.deadly.iter().copied().filter(|call| self.allowed.contains_key(call)).collect()
    }

    /// Whether this processor is known and the lists make programs for the kernel.
    pub fn check(&self) -> Result<(), CallFilterError> {
        self.programs().map(drop)
    }

    /// From here on, for good. It takes no_new_privs, or root.
    pub fn apply(&self, threads: Confined) -> Result<(), CallFilterError> {
        for program in self.programs()? {
            match threads {
                Confined::ThisThread => seccompiler::apply_filter(&program),
                Confined::AllThreads => seccompiler::apply_filter_all_threads(&program),
            }?;
        }
        Ok(())
    }

    /// In the order in which they are applied: the last one forbids what applying takes.
    fn programs(&self) -> Result<Vec<BpfProgram>, CallFilterError> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| CallFilterError::UnknownProcessor)?;
        let errno = |number: i32| SeccompAction::Errno(number.unsigned_abs());
        let any = |calls: &[i64]| calls.iter().map(|call| (*call, Vec::new())).collect();
        let program = |calls, others, these| -> Result<BpfProgram, BackendError> {
            SeccompFilter::new(calls, others, these, arch)?.try_into()
        };
        let mut programs = vec![program(any(&self.deadly), SeccompAction::Allow, SeccompAction::KillProcess)];
        if !self.absent.is_empty() {
            programs.push(program(any(&self.absent), SeccompAction::Allow, errno(libc::ENOSYS)));
        }
        let allowed = self.rules()?;
        programs.push(program(allowed, errno(libc::EPERM), SeccompAction::Allow));
        Ok(programs.into_iter().collect::<Result<_, _>>()?)
    }

    fn rules(&self) -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
        let rule = |arguments: &Vec<Argument>| {
            SeccompRule::new(arguments.iter().map(|argument| argument.condition()).collect::<Result<_, _>>()?)
        };
        let rules = |sets: &Vec<Vec<Argument>>| sets.iter().map(rule).collect::<Result<_, _>>();
        self.allowed.iter().map(|(call, sets)| Ok((*call, rules(sets)?))).collect()
    }
}

impl Argument {
    fn condition(self) -> Result<SeccompCondition, BackendError> {
        match self {
            Argument::Is(argument, value) => SeccompCondition::new(argument, Length::Qword, Operator::Eq, value),
            Argument::IsInt(argument, value) => {
                SeccompCondition::new(argument, Length::Dword, Operator::Eq, u64::from(value.unsigned_abs()))
            }
            Argument::Masked { argument, mask, value } => {
                let (mask, value) = (u64::from(mask.unsigned_abs()), u64::from(value.unsigned_abs()));
                SeccompCondition::new(argument, Length::Dword, Operator::MaskedEq(mask), value)
            }
        }
    }
}

impl From<seccompiler::Error> for CallFilterError {
    fn from(error: seccompiler::Error) -> CallFilterError {
        CallFilterError::Kernel(error)
    }
}

impl From<BackendError> for CallFilterError {
    fn from(error: BackendError) -> CallFilterError {
        CallFilterError::Kernel(error.into())
    }
}

impl fmt::Display for CallFilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallFilterError::UnknownProcessor => f.write_str("no filter is known for this processor"),
            CallFilterError::Kernel(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CallFilterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CallFilterError::UnknownProcessor => None,
            CallFilterError::Kernel(error) => Some(error),
        }
    }
}
