// Copyright 2020-2022 The NATS Authors
// Licensed under the Apache License, Version 2.0 (the "License");
// you may not use this file except in compliance with the License.
// You may obtain a copy of the License at
//
// http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS,
// WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and
// limitations under the License.

//! Reads what a stranger may have sent: the subject of a message, and its headers. The fuzzer builds this file alone.

use std::borrow::Cow;
use std::io;
use std::str::FromStr;

use crate::header::{HeaderMap, HeaderName, HeaderValue};
use crate::StatusCode;

/// Returns why a line of arguments, which was read lossily, has an unreadable subject.
pub(crate) fn unreadable_subject(line: &Cow<'_, str>) -> Option<String> {
    matches!(line, Cow::Owned(_)).then(|| "unreadable subject: it isn't valid utf-8".to_owned())
}

pub(crate) type Headers = (HeaderMap, Option<StatusCode>, Option<String>);

/// Reads a block of headers.
pub(crate) fn read_headers(block: &[u8]) -> Result<Headers, io::Error> {
    let mut lines = std::str::from_utf8(block)
        .map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, "header isn't valid utf-8")
        })?
        .lines()
        .peekable();
    let version_line = lines.next().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "no header version line found")
    })?;

    let version_line_suffix = version_line
        .strip_prefix("NATS/1.0")
        .map(str::trim)
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "header version line does not begin with `NATS/1.0`",
            )
        })?;

    let (status, description) = version_line_suffix
        .split_once(' ')
        .map(|(status, description)| (status.trim(), description.trim()))
        .unwrap_or((version_line_suffix, ""));
    let status = if !status.is_empty() {
        Some(
            status
                .parse::<StatusCode>()
                .map_err(|_| std::io::Error::other("could not parse status parameter"))?,
        )
    } else {
        None
    };
    let description = if !description.is_empty() {
        Some(description.to_owned())
    } else {
        None
    };

    let mut headers = HeaderMap::new();
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }

        let (name, value) = line.split_once(':').ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "no header version line found")
        })?;

        let name = HeaderName::from_str(name)
            .map_err(|err| io::Error::new(io::ErrorKind::InvalidInput, err))?;

        // Read the header value, which might have been split into multiple lines
        // `trim_start` and `trim_end` do the same job as doing `value.trim().to_owned()` at the end, but without a reallocation
        let mut value = value.trim_start().to_owned();
        while let Some(v) = lines.next_if(|s| s.starts_with(char::is_whitespace)) {
            value.push_str(v);
        }
        value.truncate(value.trim_end().len());

        // A lone carriage return is no end of a line, and in a value it is refused.
        let value = HeaderValue::from_str(&value)
            .map_err(|err| io::Error::new(io::ErrorKind::InvalidInput, err))?;
        headers.append(name, value);
    }

    Ok((headers, status, description))
}
