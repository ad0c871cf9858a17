// Who can change a file: a table of owners and modes, then real files.
#include "base/trusted_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace lz {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr unsigned kSelf = 1000, kOther = 1234, kUsers = 100;  // a user, another one, a group of several

std::string Why(mode_t mode, unsigned owner, unsigned group, bool alone = false) {
  struct stat info = {};
  info.st_mode = mode;
  info.st_uid = owner;
  info.st_gid = group;
  return WhyUntrusted(info, {.self = kSelf, .alone = alone});
}

TEST(TrustedFile, OwnersAndModesOfOrdinarySystemsAreAccepted) {
  EXPECT_THAT(Why(S_IFREG | 0644, kSelf, kUsers), IsEmpty());
  EXPECT_THAT(Why(S_IFREG | 0664, kSelf, kSelf), IsEmpty());  // umask 002 with a group for each user
  EXPECT_THAT(Why(S_IFREG | 0664, 0, 0), IsEmpty());          // an image for users without names
  EXPECT_THAT(Why(S_IFREG | 0755, 0, 0), IsEmpty());
  EXPECT_THAT(Why(S_IFREG | 0644, kOther, kOther, true), IsEmpty());  // a folder of the host in a container
  EXPECT_THAT(Why(S_IFREG | 0664, kOther, kUsers, true), IsEmpty());
  EXPECT_THAT(Why(S_IFCHR | 0666, 0, 0), IsEmpty());  // /dev/null
  EXPECT_THAT(Why(S_IFIFO | 0666, kSelf, kSelf), IsEmpty());
  EXPECT_THAT(Why(S_IFDIR | 0700, kSelf, kSelf), IsEmpty());
  EXPECT_THAT(Why(S_IFDIR | 0775, kSelf, kSelf), IsEmpty());
  EXPECT_THAT(Why(S_IFDIR | 01777, 0, 0), IsEmpty());       // /tmp
  EXPECT_THAT(Why(S_IFDIR | 0777, 0, 0, true), IsEmpty());  // an empty volume
}

TEST(TrustedFile, WhatAnotherUserCanChangeIsRefused) {
  EXPECT_THAT(Why(S_IFREG | 0644, kOther, kOther), HasSubstr("owned by user 1234"));
  EXPECT_THAT(Why(S_IFREG | 0666, kSelf, kSelf), HasSubstr("all users"));
  EXPECT_THAT(Why(S_IFREG | 0602, 0, 0), HasSubstr("all users"));
  EXPECT_THAT(Why(S_IFREG | 0666, kSelf, kSelf, true), HasSubstr("all users"));
  EXPECT_THAT(Why(S_IFREG | 0664, kSelf, kUsers), HasSubstr("group 100"));
  EXPECT_THAT(Why(S_IFREG | 0660, 0, kUsers), HasSubstr("group 100"));
  EXPECT_THAT(Why(S_IFIFO | 0600, kOther, kOther), HasSubstr("owned"));
  EXPECT_THAT(Why(S_IFDIR | 0777, kSelf, kSelf), HasSubstr("all users"));
  EXPECT_THAT(Why(S_IFDIR | 0775, kSelf, kUsers), HasSubstr("group 100"));
  EXPECT_THAT(Why(S_IFDIR | 0755, kOther, kOther), HasSubstr("owned"));
}

class TrustedFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "trusted-" + std::to_string(getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text, mode_t mode) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  std::string folder_;
};

TEST_F(TrustedFiles, ReadsAtMostOneByteMoreThanAllowed) {
  const std::string path = Write("a", std::string(3000, 'x'), 0644);
  EXPECT_EQ((*ReadTrustedFile(path, 5000))->size(), 3000u);
  EXPECT_EQ((*ReadTrustedFile(path, 3000))->size(), 3000u);
  EXPECT_EQ((*ReadTrustedFile(path, 100))->size(), 101u);
  EXPECT_EQ((*ReadTrustedFile("/dev/null", 100))->size(), 0u);
}

TEST_F(TrustedFiles, WhatCannotBeReadHasItsCause) {
  auto missing = ReadTrustedFile(folder_ + "/none", 10);
  ASSERT_TRUE(missing.ok());
  EXPECT_FALSE(*missing);
  EXPECT_EQ(errno, ENOENT);
  auto folder = ReadTrustedFile(folder_, 10);
  ASSERT_TRUE(folder.ok());
  EXPECT_FALSE(*folder);
}

TEST_F(TrustedFiles, ARefusalSaysWhatToRun) {
  const std::string path = Write("open", "x", 0666);
  const auto text = ReadTrustedFile(path, 10);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.status().code(), StatusCode::kUntrustedFile);
  EXPECT_THAT(text.status().Text(), HasSubstr("chmod go-w '" + path + "'"));
  EXPECT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_TRUE(ReadTrustedFile(path, 10).ok());
}

// A pipe that nobody writes does not stop the process.
TEST_F(TrustedFiles, APipeWithoutAWriterIsEmpty) {
  const std::string path = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  auto text = ReadTrustedFile(path, 10);
  ASSERT_TRUE(text.ok() && *text);
  EXPECT_EQ(**text, "");
}

TEST_F(TrustedFiles, AFolderIsMadeForThisUserAlone) {
  const std::string path = folder_ + "/new/inner";
  ASSERT_TRUE(MakeTrustedFolder(path).ok());
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(MakeTrustedFolder(path).ok());
  EXPECT_TRUE(MakeTrustedFolder("/proc/none").ok());  // writing fails there, with its own error
}

}  // namespace
}  // namespace lz
