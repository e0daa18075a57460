//! `/boot/v1/bootparameters`: what BSS's clients read and write.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use hoist_api::Code;
use hoist_api::admin::{Context, Verb};
use hoist_api::bss::{ImportParameters, ImportRemark, ImportedParameters};
use hoist_boot::parameters::{self, ParametersError, WriteResult};
use hoist_boot::request::integer;
use hoist_model::BootParameters;
use hoist_site::Roster;
use hoist_site::plan::Draft;
use hoist_site::registry::{Terms, WriteError};
use http::{HeaderName, HeaderValue, StatusCode, Uri};

use super::{Boot, bss_json, json_text};
use crate::authorisation::ScopedCommit;
use crate::inventory::{WriteQuery, write_failure};
use hoist_chassis::auth::AuditContext;
use hoist_chassis::extract::{Json, Query, read_body};
use hoist_chassis::failure::Failure;
use hoist_chassis::principal::Principal;
use hoist_chassis::route::{AccessClass, Route};

/// Largest body: a hundred thousand hosts, or one record with all its cloud-init data.
const MAX_BODY: usize = 16 * 1024 * 1024;

const REFERRAL_TOKEN: HeaderName = HeaderName::from_static("bss-referral-token");

/// Who may read boot parameters, wherever they are shown.
pub(super) const READ: AccessClass = AccessClass::Bss { verb: Verb::Read };

pub(super) fn routes() -> Vec<Route<Boot>> {
    const PATH: &str = "/boot/v1/bootparameters";
    const WRITE: AccessClass = AccessClass::Bss { verb: Verb::Write };
    const IMPORT: AccessClass = AccessClass::Admin { context: Context::Boot, verb: Verb::Write };
    /// All records of a large site at once.
    const MAX_IMPORT: usize = 256 * 1024 * 1024;
    let routes = vec![
        Route::get(PATH, READ, get)
            .summary("BSS: boot parameters, all or those of the nodes named")
            .query("name", "xnames, names or tags, joined by commas or repeated")
            .query("mac", "MACs")
            .query("nid", "nids")
            .gives::<Vec<BootParameters>>(200),
        Route::post(PATH, WRITE, post)
            .summary("BSS: create boot parameters")
            .takes::<BootParameters>()
            .gives_nothing(201),
        Route::put(PATH, WRITE, put)
            .summary("BSS: replace boot parameters")
            .takes::<BootParameters>()
            .gives::<BootParameters>(200),
        Route::patch(PATH, WRITE, patch)
            .summary("BSS: change some of the boot parameters")
            .gives_nothing(200),
        Route::delete(PATH, WRITE, delete)
            .summary("BSS: delete boot parameters")
            .gives_nothing(200),
    ];
    let as_bss = |route: Route<Boot>| route.body_limit(MAX_BODY).lenient().legacy();
    let import = Route::post("/boot/v2/parameters/import", IMPORT, import)
        .summary("Import boot parameters from another BSS; lists those that cannot be imported")
        .flag("dry_run", "change nothing, say what would change")
        .query("affects", "how many nodes the change may affect")
        .body_limit(MAX_IMPORT)
        .takes::<ImportParameters>()
        .gives::<ImportedParameters>(200);
    routes.into_iter().map(as_bss).chain([import]).collect()
}

async fn get(State(boot): State<Boot>, uri: Uri, request: Request) -> Result<Response, Failure> {
    let asked = by_query(&uri)?;
    let body = read_body(request).await?;
    let everything = |roster: &Roster| json_text(&parameters::all(roster));
    let filter = match (asked, body.trim_ascii().is_empty()) {
        (None, true) => return boot.all_parameters(everything).await,
        (asked, true) => asked.unwrap_or_default(),
        (Some(mut asked), false) => {
            // The query says enough; a body that cannot be read does not matter then.
            if let Ok(Some(also)) = BootParameters::parse(&body) {
                asked.hosts.extend(also.hosts);
                asked.macs.extend(also.macs);
                asked.nids.extend(also.nids);
                asked.kernel = also.kernel;
                asked.initrd = also.initrd;
            }
            asked
        }
        (None, false) => match BootParameters::parse(&body).map_err(unreadable)? {
            None => return boot.all_parameters(everything).await,
            Some(filter) => filter,
        },
    };
    let found = parameters::find(&boot.registry.roster(), &filter);
    Ok(bss_json(&found.map_err(|refusal| refused(&refusal))?))
}

async fn post(
    State(boot): State<Boot>,
    principal: Principal,
    audit: AuditContext,
    request: Request,
) -> Result<Response, Failure> {
    let given = whole_body(request).await?;
    let token = mint_token();
    let write = |draft: &mut Draft<'_>| parameters::create(draft, &given, &token);
    let done = boot.write_parameters(principal, audit, write).await?;
    Ok((StatusCode::CREATED, referral(&done, &token), ()).into_response())
}

async fn put(
    State(boot): State<Boot>,
    principal: Principal,
    audit: AuditContext,
    request: Request,
) -> Result<Response, Failure> {
    let given = whole_body(request).await?;
    let token = mint_token();
    let keep_kernel = boot.keep_kernel;
    let write = |draft: &mut Draft<'_>| parameters::replace(draft, &given, &token, keep_kernel);
    let done = boot.write_parameters(principal, audit, write).await?;
    let stored = parameters::spelled(&boot.registry.roster(), &given);
    Ok((referral(&done, &token), bss_json(&stored)).into_response())
}

async fn patch(
    State(boot): State<Boot>,
    principal: Principal,
    audit: AuditContext,
    request: Request,
) -> Result<StatusCode, Failure> {
    let given = whole_body(request).await?;
    boot.write_parameters(principal, audit, |draft| parameters::amend(draft, &given)).await?;
    Ok(StatusCode::OK)
}

async fn delete(
    State(boot): State<Boot>,
    principal: Principal,
    audit: AuditContext,
    request: Request,
) -> Result<StatusCode, Failure> {
    let given = whole_body(request).await?;
    let remove = |draft: &mut Draft<'_>| parameters::remove(draft, &given);
    match boot.write_parameters(principal, audit, remove).await? {
        None => Ok(StatusCode::OK),
        Some(problem) => Err(refused(&problem)),
    }
}

impl Boot {
    async fn write_parameters<T: Default + Send>(
        &self,
        principal: Principal,
        audit: AuditContext,
        write: impl Fn(&mut Draft<'_>) -> Result<T, ParametersError> + Send + Sync,
    ) -> Result<T, Failure> {
        let commit = ScopedCommit::new(&self.chassis.audit, principal, &audit);
        // BSS's clients have no way to say how many nodes they mean.
        let terms = Terms { skip_change_guard: true, ..Terms::default() };
        let mut done = T::default();
        let draft = |draft: &mut Draft<'_>| {
            done = write(draft).map_err(|refused| WriteError::Draft(Box::new(refused)))?;
            Ok(())
        };
        match self.registry.write(terms, &commit, draft).await {
            Ok(_) => Ok(done),
            Err(WriteError::Draft(reason)) => Err(match reason.downcast::<ParametersError>() {
                Ok(refusal) => refused(&refusal),
                Err(reason) => write_failure(WriteError::Draft(reason)),
            }),
            Err(error) => Err(write_failure(error)),
        }
    }
}

/// Takes over what another BSS has, as far as that is possible.
async fn import(
    State(boot): State<Boot>,
    Query(query): Query<WriteQuery>,
    principal: Principal,
    audit: AuditContext,
    Json(given): Json<ImportParameters>,
) -> Result<Json<ImportedParameters>, Failure> {
    let mut left = Vec::new();
    let mut elements = Vec::new();
    for (at, value) in given.parameters.into_iter().enumerate() {
        match BootParameters::from_value(value) {
            Ok(element) => elements.push((at, element)),
            Err(error) => {
                left.push(ImportRemark { at, who: String::new(), reason: error.to_string() });
            }
        }
    }
    let terms = query.terms();
    let commit = ScopedCommit::new(&boot.chassis.audit, principal, &audit);
    let mut imported = parameters::ImportResult::default();
    let draft = |draft: &mut Draft<'_>| {
        imported = parameters::import(draft, &elements, mint_token);
        Ok(())
    };
    let written = boot.registry.write(terms, &commit, draft).await.map_err(write_failure)?;
    left.extend(remarks(imported.left));
    left.sort_by_key(|left| left.at);
    Ok(Json(ImportedParameters {
        revision: written.revision,
        dry_run: terms.dry_run,
        created: imported.created,
        changed: imported.changed,
        unchanged: imported.unchanged,
        images: imported.images,
        affected: written.plan.affected.len(),
        needs_affects: written.needs_affects,
        left,
        revived: remarks(imported.revived),
        kept: remarks(imported.kept),
    }))
}

fn remarks(found: Vec<parameters::RecordRemark>) -> Vec<ImportRemark> {
    let remark = |parameters::RecordRemark { at, who, reason }| ImportRemark { at, who, reason };
    found.into_iter().map(remark).collect()
}

/// `name`, `mac` and `nid`, repeated or joined by commas; `None` when there is none of them. One
/// without a value asks for nothing, not for everything.
pub(super) fn by_query(uri: &Uri) -> Result<Option<BootParameters>, Failure> {
    let axum::extract::Query(pairs) =
        axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|_| Failure::new(Code::BadParameter, "the query string cannot be read"))?;
    let mut asked = BootParameters::default();
    let mut filtered = false;
    for (name, value) in pairs {
        filtered |= matches!(name.as_str(), "name" | "mac" | "nid");
        let values = value.split(',').map(str::trim).filter(|value| !value.is_empty());
        match name.as_str() {
            "name" => asked.hosts.extend(values.map(str::to_owned)),
            "mac" => asked.macs.extend(values.map(str::to_owned)),
            "nid" => {
                for value in values {
                    asked.nids.push(nid(value)?);
                }
            }
            _ => {}
        }
    }
    Ok(filtered.then_some(asked))
}

fn nid(text: &str) -> Result<i32, Failure> {
    integer(text).and_then(|nid| i32::try_from(nid).ok()).ok_or_else(|| {
        let text: String = text.chars().take(40).collect();
        Failure::new(Code::BadParameter, format!("Bad Request - Invalid nid '{text}'"))
    })
}

async fn whole_body(request: Request) -> Result<BootParameters, Failure> {
    let body = read_body(request).await?;
    Ok(BootParameters::parse(&body).map_err(unreadable)?.unwrap_or_default())
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn unreadable(error: hoist_model::ParseParametersError) -> Failure {
    Failure::new(Code::MalformedBody, format!("Bad Request: {error}"))
}

fn refused(refused: &ParametersError) -> Failure {
    let code = match refused {
        ParametersError::Bad(_) => Code::InvalidBody,
        ParametersError::Missing(_) => Code::NotFound,
    };
    Failure::new(code, refused.to_string())
}

/// Who wrote records learns the token that their nodes will carry.
fn referral(done: &WriteResult, token: &str) -> Option<[(HeaderName, HeaderValue); 1]> {
    let value = HeaderValue::from_str(token).expect("hexadecimal digits");
    (*done == WriteResult::Records).then_some([(REFERRAL_TOKEN, value)])
}

fn mint_token() -> String {
    uuid::Uuid::new_v4().to_string()
}
