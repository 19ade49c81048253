//! Who asks, and where: every way of the AWS tools to say it, over real HTTP.

use std::fs;
use std::net::{TcpListener, ToSocketAddrs as _};
use std::process::Command;

use crate::support::{
    BUCKET, Invocation, Outcome, Project, ProjectBuilder, S3Server, http, many, pack, serve,
};
use casepack::bundle::Compression;

/// A project with a release, and where it was published.
fn published(server: &S3Server) -> Project {
    let project = ProjectBuilder::new().build();
    pack(&project.path("bundle"), &many(2), Compression::Zstd, 2);
    let args = ["publish", "s3://bucket/store", "--from", "bundle"];
    let mut command = project.invoke(args);
    for (name, value) in server.env() {
        command = command.env(name, value);
    }
    command.run().assert_code(0);
    server.take_requests();
    project
}

/// Lists the store with nothing but `env`.
fn ls(project: &Project, env: &[(&str, &str)], args: &[&str]) -> Outcome {
    listing(project, env, args).run()
}

fn listing(project: &Project, env: &[(&str, &str)], args: &[&str]) -> Invocation {
    let all = ["ls", "s3://bucket/store", "--output", "json"];
    let command = project.invoke(all.iter().chain(args).copied());
    let command = command.env("AWS_EC2_METADATA_DISABLED", "true");
    env.iter()
        .fold(command, |command, (name, value)| command.env(*name, *value))
}

#[track_caller]
fn found(outcome: Outcome) {
    let outcome = outcome.assert_code(0);
    assert_eq!(outcome.json()["refs"][0]["name"], "latest", "{outcome}");
}

/// Access key and secret of the server.
fn keys(server: &S3Server) -> (String, String) {
    let [_, _, (_, id), (_, secret), _] = server.env();
    (id, secret)
}

#[test]
fn public_stores_are_read_without_a_signature() {
    let server = S3Server::start_public();
    let project = published(&server);
    let at = [("AWS_ENDPOINT_URL_S3", server.endpoint())];
    found(ls(&project, &at, &["--s3-anonymous"]));
    let asked = server.take_requests();
    assert!(!asked.is_empty() && asked.iter().all(|it| !it.signed));
    // Nobody's keys are not those of somebody whom the environment names.
    let env = [
        at[0],
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "y"),
    ];
    let wrong = ls(&project, &env, &[]).assert_code(3);
    assert!(
        wrong.stdout.contains("does not accept these credentials"),
        "{wrong}"
    );
    found(ls(&project, &env, &["--s3-anonymous"]));
    let refused = ls(&project, &at, &[]).assert_code(3);
    assert!(
        refused.stdout.contains("no credentials were found"),
        "{refused}"
    );
    let args = [
        "publish",
        "s3://bucket/other",
        "--from",
        "bundle",
        "--s3-anonymous",
    ];
    let refused = project
        .invoke(args)
        .env(at[0].0, at[0].1)
        .run()
        .assert_code(3);
    assert!(
        refused.stderr.contains("only reading is public"),
        "{refused}"
    );
    // A store that is not public.
    let server = S3Server::start();
    let project = published(&server);
    let at = [("AWS_ENDPOINT_URL_S3", server.endpoint())];
    let refused = ls(&project, &at, &["--s3-anonymous"]).assert_code(3);
    assert!(refused.stdout.contains("access is denied"), "{refused}");
}

#[test]
fn the_bucket_may_stand_in_the_hosts_name() {
    let server = S3Server::start_with_hosts();
    // Published by the path, which such servers take as well.
    let project = published(&server);
    let (id, secret) = keys(&server);
    let env = [
        ("AWS_ENDPOINT_URL_S3", server.endpoint()),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", &id),
        ("AWS_SECRET_ACCESS_KEY", &secret),
    ];
    let by_host = listing(&project, &env, &["--s3-path-style", "false"]);
    let name = format!("{BUCKET}.localhost");
    let outcome = if (name.as_str(), 80).to_socket_addrs().is_ok() {
        by_host.run()
    } else {
        // Some machines know no names below localhost: one of its own is made for the command.
        project.write("hosts", format!("127.0.0.1 localhost {name}\n"));
        let works = Command::new("bwrap")
            .args(["--dev-bind", "/", "/", "true"])
            .status();
        if !works.is_ok_and(|status| status.success()) {
            println!("skipped: {name} is no name here, and there is no bwrap to make it one");
            return;
        }
        let hosts = project.path("hosts").into_os_string();
        let around = ["--dev-bind", "/", "/", "--ro-bind"].map(Into::into);
        let around = around.into_iter().chain([hosts, "/etc/hosts".into()]);
        by_host.within("bwrap", around).run()
    };
    found(outcome);
    let asked = server.take_requests();
    let expected = server.endpoint().replace("http://", &format!("{BUCKET}."));
    assert!(!asked.is_empty());
    for request in asked {
        assert_eq!(request.host.as_deref(), Some(expected.as_str()));
        assert!(request.signed);
    }
}

#[test]
fn profiles_say_who_and_where() {
    let server = S3Server::start();
    let project = published(&server);
    let (id, secret) = keys(&server);
    let endpoint = server.endpoint();
    project.write(
        "aws/config",
        format!(
            "[default]\nregion = eu-west-1\n[profile other]\nregion = us-east-1\n\
             endpoint_url = {endpoint}\n[profile tool]\nregion = us-east-1\nendpoint_url = {endpoint}\n\
             credential_process = {}\n",
            project.path("aws/tool").display()
        ),
    );
    project.write(
        "aws/credentials",
        format!(
            "[default]\naws_access_key_id = x\naws_secret_access_key = y\n\
             [other]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n"
        ),
    );
    project.write(
        "aws/tool",
        format!(
            "#!/bin/sh\necho '{{\"Version\": 1, \"AccessKeyId\": \"{id}\", \
             \"SecretAccessKey\": \"{secret}\"}}'\n"
        ),
    );
    let tool = project.path("aws/tool");
    fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = |name: &str| project.path(name).to_str().unwrap().to_owned();
    let (config, credentials) = (path("aws/config"), path("aws/credentials"));
    let files = [
        ("AWS_CONFIG_FILE", config.as_str()),
        ("AWS_SHARED_CREDENTIALS_FILE", credentials.as_str()),
    ];
    found(ls(&project, &files, &["--s3-profile", "other"]));
    found(ls(&project, &files, &["--s3-profile", "tool"]));
    let by_variable = [files[0], files[1], ("AWS_PROFILE", "other")];
    found(ls(&project, &by_variable, &[]));
    // The flag wins, and what a profile lacks is not taken from another one.
    let other = [files[0], files[1], ("AWS_PROFILE", "none")];
    found(ls(&project, &other, &["--s3-profile", "tool"]));
    let lost = ls(
        &project,
        &files,
        &["--s3-profile", "none", "--s3-endpoint", endpoint],
    );
    let lost = lost.assert_code(3);
    assert!(lost.stdout.contains("no credentials were found"), "{lost}");
    let fix = "Correct the profile none in [PROJECT]/aws/config";
    assert!(lost.stdout.contains(fix), "{lost}");
    let none = [files[0], files[1], ("AWS_PROFILE", "none")];
    let lost = ls(&project, &none, &["--s3-endpoint", endpoint]).assert_code(3);
    assert!(lost.stdout.contains(fix), "{lost}");
    // The default profile has other keys; the region is its own.
    let wrong = ls(&project, &files, &["--s3-endpoint", endpoint]).assert_code(3);
    assert!(wrong.stdout.contains("credentials"), "{wrong}");
    // Who names a profile means it, whatever keys the environment has.
    let others = [
        files[0],
        files[1],
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "y"),
    ];
    found(ls(&project, &others, &["--s3-profile", "other"]));
    let right = [
        files[0],
        files[1],
        ("AWS_ACCESS_KEY_ID", &id),
        ("AWS_SECRET_ACCESS_KEY", &secret),
        ("AWS_REGION", "us-east-1"),
    ];
    let empty = [
        "--s3-profile",
        "",
        "--s3-endpoint",
        endpoint,
        "--s3-region",
        "",
    ];
    found(ls(&project, &right, &empty));
    let lost = ls(
        &project,
        &right,
        &["--s3-profile", "none", "--s3-endpoint", endpoint],
    );
    let lost = lost.assert_code(3);
    assert!(lost.stdout.contains("`none` was not defined"), "{lost}");
    // In the home directory, where the tools look by themselves.
    let home = project.path(".");
    project.write(".aws/config", project.read("aws/config"));
    project.write(".aws/credentials", project.read("aws/credentials"));
    let at_home = listing(&project, &[("AWS_PROFILE", "other")], &[]).env("HOME", home);
    found(at_home.run());
    project.write("aws/tool", "#!/bin/sh\nexit 1\n");
    let failed = ls(&project, &files, &["--s3-profile", "tool"]).assert_code(3);
    assert!(
        failed.stdout.contains("no credentials were found"),
        "{failed}"
    );
}

/// As on EKS, with roles for service accounts.
#[test]
fn a_web_identity_is_exchanged_for_keys() {
    let server = S3Server::start();
    let project = published(&server);
    let (id, secret) = keys(&server);
    let sts = serve(move |_, body| {
        let asked = body.contains("Action=AssumeRoleWithWebIdentity")
            && body.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fevals");
        if !asked || !body.contains("WebIdentityToken=a-token") {
            let refused = "<ErrorResponse><Error><Code>AccessDenied</Code>\
                           <Message>not this one</Message></Error></ErrorResponse>";
            return http("403 Forbidden", "", refused);
        }
        let answer = format!(
            "<AssumeRoleWithWebIdentityResponse \
             xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
             <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{id}</AccessKeyId>\
             <SecretAccessKey>{secret}</SecretAccessKey><SessionToken>session</SessionToken>\
             <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>\
             </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        );
        http("200 OK", "content-type: text/xml\r\n", &answer)
    });
    project.write("token", "a-token");
    let token = project.path("token");
    let env = [
        ("AWS_ENDPOINT_URL_S3", server.endpoint()),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL_STS", &sts),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/evals"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()),
    ];
    found(ls(&project, &env, &[]));
    project.write("token", "another");
    let refused = ls(&project, &env, &[]).assert_code(3);
    assert!(refused.stdout.contains("not this one"), "{refused}");
    fs::remove_file(&token).unwrap();
    let refused = ls(&project, &env, &[]).assert_code(3);
    assert!(
        refused.stdout.contains("no credentials were found"),
        "{refused}"
    );
}

/// As on ECS, and with EKS's pod identities.
#[test]
fn a_container_is_given_keys() {
    let server = S3Server::start();
    let project = published(&server);
    let (id, secret) = keys(&server);
    let agent = serve(move |head, _| {
        let known = head.to_lowercase().contains("authorization: a-token\r\n");
        if !head.starts_with("GET /keys ") || !known {
            let refused = r#"{"code": "AccessDenied", "message": "not this one"}"#;
            return http(
                "403 Forbidden",
                "content-type: application/json\r\n",
                refused,
            );
        }
        let keys = format!(
            "{{\"AccessKeyId\": \"{id}\", \"SecretAccessKey\": \"{secret}\", \
             \"Token\": \"session\", \"Expiration\": \"2099-01-01T00:00:00Z\"}}"
        );
        http("200 OK", "content-type: application/json\r\n", &keys)
    });
    project.write("token", "a-token");
    let token = project.path("token");
    let uri = format!("{agent}/keys");
    let by_file = [
        ("AWS_ENDPOINT_URL_S3", server.endpoint()),
        ("AWS_REGION", "us-east-1"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &uri),
        (
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
            token.to_str().unwrap(),
        ),
    ];
    found(ls(&project, &by_file, &[]));
    let mut by_text = by_file;
    by_text[3] = ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "a-token");
    found(ls(&project, &by_text, &[]));
    by_text[3].1 = "another";
    let refused = ls(&project, &by_text, &[]).assert_code(3);
    assert!(
        refused.stdout.contains("no credentials were found"),
        "{refused}"
    );
}

/// SHA-1 of `https://sso.example/start`, by which the AWS tools find the token of such a profile.
const BY_URL: &str = "98df91031e87f97bfc088c045be6442dc5d70b2a";
/// SHA-1 of `office`, the name of a session.
const BY_SESSION: &str = "e6427457497fe0f4f93a7334d2203b8e17ee82df";

#[track_caller]
fn log_in_first(outcome: Outcome, profile: &str) {
    let outcome = outcome.assert_code(3);
    let fix = format!("aws sso login --profile {profile}");
    assert!(outcome.stdout.contains(&fix), "{outcome}");
}

/// As with IAM Identity Center: who has logged in with `aws sso login` has a token for keys.
#[test]
fn who_has_logged_in_is_given_keys() {
    let server = S3Server::start();
    let project = published(&server);
    let (id, secret) = keys(&server);
    let asked_for = "/federation/credentials?role_name=Evals&account_id=123456789012 ";
    let portal = serve(move |head, _| {
        let json = "content-type: application/json\r\n";
        let known = head.contains("x-amz-sso_bearer_token: fresh\r\n");
        if !head.starts_with(&format!("GET {asked_for}")) || !known {
            let refused = r#"{"message": "Session token not found or invalid"}"#;
            let kind = "x-amzn-errortype: UnauthorizedException\r\n";
            return http("401 Unauthorized", &format!("{json}{kind}"), refused);
        }
        let keys = format!(
            "{{\"roleCredentials\": {{\"accessKeyId\": \"{id}\", \"secretAccessKey\": \"{secret}\", \
             \"sessionToken\": \"session\", \"expiration\": 4070908800000}}}}"
        );
        http("200 OK", json, &keys)
    });
    let tokens = serve(move |head, body| {
        let json = "content-type: application/json\r\n";
        let asked: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        let known = asked["grantType"] == "refresh_token"
            && asked["clientId"] == "client"
            && asked["clientSecret"] == "client's secret"
            && asked["refreshToken"] == "again";
        if !head.starts_with("POST /token ") || !known {
            let refused = r#"{"error": "invalid_grant", "error_description": "not this one"}"#;
            let kind = "x-amzn-errortype: InvalidGrantException\r\n";
            return http("400 Bad Request", &format!("{json}{kind}"), refused);
        }
        let token = r#"{"accessToken": "fresh", "tokenType": "Bearer", "expiresIn": 3600,
                        "refreshToken": "and again"}"#;
        http("200 OK", json, token)
    });
    project.write(
        ".aws/config",
        "[profile url]\nsso_start_url = https://sso.example/start\nsso_region = eu-west-1\n\
         sso_account_id = 123456789012\nsso_role_name = Evals\n\
         [profile session]\nsso_session = office\nsso_account_id = 123456789012\n\
         sso_role_name = Evals\n\
         [sso-session office]\nsso_start_url = https://sso.example/start\n\
         sso_region = eu-west-1\nsso_registration_scopes = sso:account:access\n",
    );
    let env = [
        ("AWS_ENDPOINT_URL_S3", server.endpoint()),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL_SSO", &portal),
        ("AWS_ENDPOINT_URL_SSO_OIDC", &tokens),
    ];
    let by = |profile: &str| {
        let listing = listing(&project, &env, &["--s3-profile", profile]);
        listing.env("HOME", project.path("")).run()
    };
    let cached = |name: &str| format!(".aws/sso/cache/{name}.json");
    let token = |text: &str, until: &str, more: &str| {
        format!(
            "{{\"startUrl\": \"https://sso.example/start\", \"region\": \"eu-west-1\", \
             \"accessToken\": \"{text}\", \"expiresAt\": \"{until}\"{more}}}"
        )
    };
    let (past, future) = ("2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z");
    let renewable = |by: &str, until: &str| {
        format!(
            ", \"clientId\": \"client\", \"clientSecret\": \"client's secret\", \
             \"registrationExpiresAt\": \"{until}\", \"refreshToken\": \"{by}\""
        )
    };
    // Nobody has logged in yet.
    log_in_first(by("url"), "url");
    log_in_first(by("session"), "session");
    for (profile, name) in [("url", BY_URL), ("session", BY_SESSION)] {
        project.write(&cached(name), token("fresh", future, ""));
        found(by(profile));
        // It was ended by somebody, or is none.
        project.write(&cached(name), token("stale", future, ""));
        log_in_first(by(profile), profile);
        project.write(&cached(name), "{}");
        log_in_first(by(profile), profile);
        // Its time is over.
        project.write(&cached(name), token("stale", past, ""));
        log_in_first(by(profile), profile);
    }
    // That of a session is exchanged for a new one, which is kept.
    let old = token("stale", past, &renewable("again", future));
    project.write(&cached(BY_SESSION), old);
    found(by("session"));
    let kept: serde_json::Value = serde_json::from_str(&project.read(&cached(BY_SESSION))).unwrap();
    assert_eq!(kept["accessToken"], "fresh");
    assert_eq!(kept["refreshToken"], "and again");
    found(by("session"));
    // Unless nobody gives one for it, or nobody may ask any more.
    for more in [renewable("never", future), renewable("again", past)] {
        project.write(&cached(BY_SESSION), token("stale", past, &more));
        log_in_first(by("session"), "session");
    }
    // One that the environment names is named as one that a flag does.
    let by_variable = listing(&project, &env, &[]).env("AWS_PROFILE", "url");
    let refused = by_variable.env("HOME", project.path("")).run();
    let refused = refused.assert_code(3);
    let refused = refused.stdout;
    assert!(
        refused.contains("`aws sso login --profile url`"),
        "{refused}"
    );
    // A role that is taken on with a login: that is for the profile which has the login.
    let config = project.read(".aws/config");
    let role = "[profile role]\nrole_arn = arn:aws:iam::123456789012:role/evals\n\
                source_profile = url\n";
    project.write(".aws/config", format!("{config}{role}"));
    log_in_first(by("role"), "url");
    // Nobody there, or nobody who answers: that is nothing that logging in mends. A token that is
    // over is renewed by another service than the one that gives keys.
    let nobody = "http://127.0.0.1:9".to_owned();
    let broken = serve(|_, _| http("503 Service Unavailable", "", ""));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let frozen = format!("http://{}", silent.local_addr().unwrap());
    let old = token("stale", past, &renewable("again", future));
    for (profile, variable, server) in [("url", 2, &nobody), ("session", 3, &nobody)]
        .into_iter()
        .chain([("session", 3, &broken), ("session", 3, &frozen)])
    {
        let mut env = env;
        env[variable].1 = server;
        project.write(&cached(BY_URL), token("fresh", future, ""));
        project.write(&cached(BY_SESSION), &old);
        let listing = listing(&project, &env, &["--s3-profile", profile]);
        let refused = listing.env("HOME", project.path("")).run().assert_code(3);
        assert!(!refused.stdout.contains("aws sso login"), "{refused}");
        assert!(refused.stdout.contains("SSO service"), "{refused}");
        assert!(refused.stdout.contains(server), "{refused}");
    }
}
